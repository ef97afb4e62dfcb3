"""`sanderling bench --baseline`: what is compared, and what fails the gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result as Ran

from sanderling import InputError
from sanderling.cli import bench as cli
from sanderling.measure import baseline, sweep
from sanderling.measure.bench_results import Bench
from sanderling.measure.record import Result, Setting

from .support.bench_command import INT8, call, made, measured

# -- the baseline -------------------------------------------------------------------------------


def against(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    now: Bench,
    then: Bench,
    *words: str,
    status: int = 0,
) -> Ran:
    path = tmp_path / "then.json"
    path.write_text(json.dumps(then.to_json()), "utf-8")
    monkeypatch.setattr(cli, "measure", lambda models, **_: now)
    return call(INT8, "--baseline", path, *words, status=status)


@pytest.mark.parametrize(
    ("ms", "noise", "verdict", "status"),
    [
        (1.0, 0.01, "same", 0),
        (1.045, 0.001, "slower", 0),  # surely slower, but perhaps within the limit
        (1.5, 0.01, "regressed", 1),
        (1.07, 0.3, "cannot tell", 0),  # beyond the limit, but not surely
        (1.0, 0.3, "cannot tell", 0),
        (0.5, 0.01, "faster", 0),
    ],
)
def test_a_regression_must_be_sure(
    ms: float,
    noise: float,
    verdict: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, then = made(measured(ms=ms, noise=noise)), made(measured(noise=noise))
    ran = against(tmp_path, monkeypatch, now, then, "--max-regression", "5%", status=status)
    assert verdict in ran.stdout.split("against the baseline")[1]
    doubt = "by more than 5 % cannot be told" in ran.stderr
    assert doubt == (verdict in ("cannot tell", "slower"))
    against(tmp_path, monkeypatch, now, then)  # without a limit nothing is a failure


def test_what_fails_now_and_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Result("m.tflite", Setting(), error="it died")
    now = made(broken, measured(setting=Setting(threads=2)))
    ran = against(tmp_path, monkeypatch, now, made(measured()), "--max-regression", "5", status=1)
    assert "fails now" in ran.stdout and "not in the baseline" in ran.stdout
    assert "the check failed: m.tflite at sanderling, 1 thread is no longer running" in ran.stderr


def test_nothing_compared_fails_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, then = made(measured("new.tflite")), made(measured("old.tflite"))
    ran = against(tmp_path, monkeypatch, now, then, "--max-regression", "5%", status=1)
    assert "nothing was compared" in ran.stderr and "not measured now" in ran.stdout
    assert ran.stderr.splitlines()[-1] == (
        "the check failed: nothing was compared with the baseline"
    )
    assert "new.tflite at sanderling, 1 thread" in ran.stderr
    assert "old.tflite at sanderling, 1 thread" in ran.stderr
    against(tmp_path, monkeypatch, now, then)  # no gate, no failure


def test_what_was_not_compared_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = made(measured(), measured(setting=Setting(threads=4)))
    now = made(measured(), measured(setting=Setting(threads=2)))
    ran = against(tmp_path, monkeypatch, now, then, "--max-regression", "5%")
    assert "not all was compared" in ran.stderr
    assert "not in the baseline: m.tflite at sanderling, 2 threads" in ran.stderr
    assert "not measured now: m.tflite at sanderling, 4 threads" in ran.stderr


def test_two_files_of_one_name_are_not_mixed_up() -> None:
    then = made(measured("a/m.tflite"), measured("b/m.tflite", ms=3))
    now = [measured("b/m.tflite", ms=3), measured("a/m.tflite")]
    assert [c.verdict for c in baseline.changes(now, then.to_json(), 0.5)] == ["same", "same"]


@pytest.mark.parametrize(
    ("delegates", "name"),
    [
        ((), "sanderling, 1 thread"),
        (("cpu",), "sanderling, 1 thread"),
        (("cpu", "reference"), "sanderling, 1 thread"),
        (("reference",), "sanderling, reference, 1 thread"),
        (("mine", "cpu"), "sanderling, mine, 1 thread"),
        (("mine", "reference"), "sanderling, mine+reference, 1 thread"),
    ],
)
def test_one_setting_has_one_name(delegates: tuple[str, ...], name: str) -> None:
    assert Setting(delegates=delegates).name == name
    both = sweep.combinations(["sanderling"], [1], [delegates, (*delegates, "reference")], ["f32"])
    assert len({s.name for s in both}) == len(both)


def test_another_machine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = made(measured())
    then.machine = {**then.machine, "cpu": "Abacus 9", "versions": {"numpy": "0.1"}}
    said = against(tmp_path, monkeypatch, made(measured()), then).stderr
    assert "another CPU (Abacus 9 then" in said and "another numpy (0.1 then" in said


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5", 0.05), ("0.05", 0.05), ("0", 0)])
def test_shares(text: str, share: float) -> None:
    assert baseline.percent(text) == pytest.approx(share)
    with pytest.raises(InputError, match="not a share"):
        baseline.percent(f"{text} or so")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("0", (0,)), ("0,2", (0, 2)), ("1-3,0", (0, 1, 2, 3)), ("0x5", (0, 2))],
)
def test_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert cli._cpus(text) == cpus
