"""What the tests of devices share: logs of the tool, and a phone behind the scripted adb."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from sanderling.measure.devices import android
from sanderling.measure.record import Setting

from . import scripted_adb

MODEL = str(files("sanderling") / "data" / "digits_int8.tflite")
SETTING = Setting(threads=4)

NEW = """\
INFO: STARTING!
INFO: Log parameter values verbosely: [0]
INFO: Num threads: [4]
INFO: Graph: [/data/local/tmp/m.tflite]
INFO: #threads used for CPU inference: [4]
WARN: Tensor # 0 is named input but flags call it in0
INFO: Loaded model /data/local/tmp/m.tflite
INFO: Explicitly applied XNNPACK delegate, and the model graph will be completely executed by the delegate.
INFO: The input model file size (MB): 3.57776
INFO: Initialized session in 12.345ms.
INFO: Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
INFO: count=40 first=15200 curr=12100 min=12000 max=15200 avg=12350.5 std=600 p5=12010 median=12200 p95=13900

INFO: Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
INFO: count=82 first=12111 curr=12222 min=11900 max=13333 avg=12200.25 std=210 p5=11950 median=12180 p95=12600

INFO: Inference timings in us: Init: 12345, First inference: 15200, Warmup (avg): 12350.5, Inference (avg): 12200.25
INFO: Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE
INFO: Memory footprint delta from the start of the tool (MB): init=2.5 overall=7.25
INFO: Overall peak memory footprint (MB) via periodic monitoring: 20.5
"""  # noqa: E501
PROFILE = """\
INFO: Profiling Info for Benchmark Initialization:
============================== Run Order ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t         AllocateTensors\t    0.500\t    0.500\t100.000%\t100.000%\t     0.000\t        1\tAllocateTensors/0

INFO: Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t                 CONV_2D\t    4.269\t    4.000\t 80.000%\t 80.000%\t     0.000\t        1\t[a, b]:0
\t                 SOFTMAX\t    1.200\t    1.000\t 20.000%\t100.000%\t     0.000\t        1\t[c]:1

============================== Top by Computation Time ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t                 CONV_2D\t    4.269\t    4.000\t 80.000%\t 80.000%\t     0.000\t        1\t[a, b]:0

Number of nodes executed: 2
============================== Summary by node type ==============================
\t             [Node type]\t  [count]\t  [avg ms]\t    [avg %]\t    [cdf %]\t  [mem KB]\t[times called]
\t                 CONV_2D\t        1\t     4.000\t    80.000%\t    80.000%\t     0.000\t        1
\t                 SOFTMAX\t        1\t     1.000\t    20.000%\t   100.000%\t     0.000\t        1

Timings (microseconds): count=82 first=5400 curr=5000 min=4900 max=5500 avg=5000 std=100
Memory (bytes): count=0
2 nodes observed
"""  # noqa: E501
PREFIX = "11-16 02:00:02.000  4242  4242 I tflite  : "


def as_logcat(text: str) -> str:
    lines = (line.removeprefix("INFO: ").removeprefix("WARN: ") for line in text.splitlines())
    return "".join(f"{PREFIX}{line}\n" for line in lines)


class Phone:
    """The scripted adb's device, seen from a test."""

    def __init__(self, folder: Path, **scenario: Any) -> None:
        self.folder = folder
        self.temp = scripted_adb.install(folder, **scenario)

    def tool(self, text: str = NEW, status: int = 0, before: str = "") -> str:
        """A benchmark_model for this device: it says its words, then the log."""
        (self.folder / "log").write_text(text)
        path = self.folder / "tool"
        path.write_text(
            f'#!/bin/sh\n{before}\necho "words: $*"\ncat {self.folder / "log"}\nexit {status}\n'
        )
        path.chmod(0o755)
        return str(path)

    @property
    def calls(self) -> list[list[str]]:
        return scripted_adb.calls(self.folder)

    @property
    def left(self) -> list[str]:
        """Folders of runs; the store of files stays."""
        return [p.name for p in self.temp.glob("sanderling-*") if p.name != "sanderling-files"]


@pytest.fixture(name="phone")
def scripted_phone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Phone]]:
    folder = tmp_path / "phone"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(android, "POLL", 0.01)
    yield lambda **scenario: Phone(folder, **scenario)
