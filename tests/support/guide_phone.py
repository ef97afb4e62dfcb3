"""The phones of the guide's pages: the scripted adb with the tools that a reader has downloaded,
and what a Mac has written of an iPhone."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from . import captured_traces, scripted_adb, scripted_eval
from .phones import NEW, PROFILE, as_logcat

BENCHMARK = "android_aarch64_benchmark_model"
DIFF = "android_aarch64_eval_inference_diff"


def plug_in(home: Path, work: Path) -> str:
    """Make the phone and its tools; returns the folder of `adb`, for PATH."""
    phone = home / "phone"
    phone.mkdir()
    scripted_adb.install(phone)
    (phone / "app_log").write_text(as_logcat(NEW))
    story = captured_traces.gpu_story()
    if find_spec("perfetto"):
        (phone / "recorded").write_bytes(captured_traces.perfetto(story))
    (phone / "log").write_text(NEW + PROFILE)
    _write(work / BENCHMARK, f"#!/bin/sh\ncat {phone / 'log'}\n")
    _write(work / f"{BENCHMARK}.apk", "apk")
    (work / "console.txt").write_text(NEW)
    (work / "app.xml").write_text(captured_traces.instruments(story))
    os.link(scripted_eval.install(phone, "inference_diff", {"errors": [1.96277e-05]}), work / DIFF)
    return str(phone)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
