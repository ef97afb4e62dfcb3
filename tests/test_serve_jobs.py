"""Jobs of `sanderling serve --run`: what may be started, how it is watched, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sanderling.errors import InputError
from sanderling.web import jobs as jobs_module
from sanderling.web.job_forms import FORMS, Command, command
from sanderling.web.jobs import CANCELLED, DONE, FAILED, Job, Jobs

from .support import serve_records
from .support.asgi_client import Client

pytest.importorskip("starlette")

from sanderling.web.server import make_app, make_site

TOKEN = "the-token"
OWN = {"origin": "http://127.0.0.1"}
BENCH = {"model": "a.tflite", "threads": "1", "secs": "0.1", "engines": "sanderling"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    serve_records.models(tmp_path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "one.png").write_bytes(b"")
    (tmp_path / "x.npz").write_bytes(b"")
    (tmp_path / "labels.txt").write_text("1\n")
    return tmp_path


def until(holds: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let jobs be a Python program of the test's."""

    def use(code: str) -> None:
        monkeypatch.setattr(
            jobs_module,
            "_started",
            lambda words, folder: subprocess.Popen(
                [sys.executable, "-c", code, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ),
        )

    return use


# -- commands -------------------------------------------------------------------------------------


def test_commands_are_words_with_files_of_the_folder(folder: Path) -> None:
    a, b, x = (str(folder / n) for n in ("a.tflite", "b.tflite", "x.npz"))
    made = command("bench", BENCH, folder, "now")
    assert made.words[:2] == ["bench", a] and made.words[-2:] == ["--json", str(made.record)]
    assert made.shown(folder).startswith("sanderling bench a.tflite --engines sanderling")
    made = command("diff", {"model": "a.tflite", "other": "b.tflite", "layers": "yes"}, folder, "n")
    assert made.words[:4] == ["diff", a, b, "--per-tensor"]
    made = command("quantize", {"model": "a.tflite", "mode": "int8", "data": "x.npz"}, folder, "n")
    assert made.words[:6] == ["quantize", a, "--mode", "int8", "--data", x] and "-o" in made.words
    values = {"task": "imagenet", "model": "a.tflite", "data": "pictures", "labels": "labels.txt"}
    made = command("eval", values, folder, "n")
    assert made.words[3:5] == ["--images", str(folder / "pictures")] and "--labels" in made.words
    values = {"task": "arrays", "model": "a.tflite", "data": "x.npz", "std": "255"}
    made = command("eval", values, folder, "n")
    assert made.words[3:9] == ["--data", x, "--std", "255", "--mean", "0"]


def test_nothing_is_written_over(folder: Path) -> None:
    made = [command("quantize", {"model": "a.tflite", "mode": "int8"}, folder, "now")]
    made[0].record.write_text("")
    Path(made[0].words[made[0].words.index("-o") + 1]).write_text("")
    made.append(command("quantize", {"model": "a.tflite", "mode": "int8"}, folder, "now"))
    assert made[0].record != made[1].record
    assert made[0].words[-3] != made[1].words[-3]


# what is wrong -> values that differ from those of a good form
WRONG = {
    "no model": {"model": ""},
    "a model that is not there": {"model": "c.tflite"},
    "a path out of the folder": {"model": "../a.tflite"},
    "an absolute path": {"model": "/etc/passwd"},
    "an option": {"model": "--json"},
    "a shell": {"threads": "1; rm -rf /"},
    "a number that is none": {"secs": "much"},
    "not a number": {"secs": "nan"},
    "a number too large": {"secs": "1e9"},
    "an engine that is none": {"engines": "sanderling,evil"},
    "a zero": {"model": "a.tflite\x00"},
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused(what: str, folder: Path) -> None:
    with pytest.raises(InputError):
        command("bench", BENCH | WRONG[what], folder, "now")


def test_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "out.tflite").symlink_to(serve_records.F32)
    with pytest.raises(InputError):
        command("bench", BENCH | {"model": "out.tflite"}, folder, "now")


def test_only_known_verbs_are_started(folder: Path) -> None:
    with pytest.raises(InputError, match="no such job"):
        command("demo", BENCH, folder, "now")
    assert set(FORMS) == {"bench", "diff", "quantize", "eval"}


# -- the queue ------------------------------------------------------------------------------------


def test_progress_is_heard_and_lines_are_bounded(
    folder: Path, scripted: Callable[[str], None]
) -> None:
    scripted(
        "import sys\nprint('result')\n"
        "print('a' * 9000, file=sys.stderr)\n"
        "for n in range(1000): print(f'samples: {n} of 2000', file=sys.stderr)"
    )
    jobs = Jobs(folder)
    job = jobs.start("bench", BENCH)
    until(lambda: job.is_over)
    assert job.state == DONE and job.result == ["result"] and job.share == 1.0
    told = job.told(0)
    assert len(told["lines"]) == jobs_module.LINES and told["seen"] > 1000
    assert told["lines"][-1] == "samples: 999 of 2000"
    assert job.told(told["seen"])["lines"] == []


def test_jobs_run_one_after_the_other_and_can_be_cancelled(
    folder: Path, scripted: Callable[[str], None]
) -> None:
    scripted("import sys, time\nprint('up', file=sys.stderr, flush=True)\ntime.sleep(60)")
    jobs = Jobs(folder)
    first, second = (jobs.start("bench", BENCH) for _ in range(2))
    until(lambda: first.said)
    assert second.state == "waiting"
    jobs.cancel(second.id)
    jobs.cancel(first.id)
    until(lambda: first.process is not None and first.process.poll() is not None)
    assert first.state == second.state == CANCELLED and second.process is None


def test_a_job_that_fails_says_why(folder: Path, scripted: Callable[[str], None]) -> None:
    scripted("import sys\nprint('it went wrong', file=sys.stderr)\nsys.exit(2)")
    job = Jobs(folder).start("bench", BENCH)
    until(lambda: job.is_over)
    assert job.state == FAILED and job.status == 2 and job.said == ["it went wrong"]


def test_too_many_jobs_are_refused(folder: Path, scripted: Callable[[str], None]) -> None:
    scripted("import time; time.sleep(60)")
    jobs = Jobs(folder)
    for _ in range(jobs_module.MOST_WAITING):
        jobs.start("bench", BENCH)
    with pytest.raises(InputError, match="too many jobs"):
        jobs.start("bench", BENCH)
    jobs.stop()
    assert all(j.state == CANCELLED for j in jobs.all.values())


def test_the_oldest_jobs_that_are_over_are_dropped(
    folder: Path, scripted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "MOST_KEPT", 2)
    scripted("import time; time.sleep(60)")
    jobs = Jobs(folder)
    first = jobs.start("bench", BENCH)
    for _ in range(4):
        jobs.cancel(jobs.start("bench", BENCH).id)
    last = jobs.start("bench", BENCH)
    assert list(jobs.all) == [first.id, 4, 5, last.id] and last.id == jobs.count == 6
    assert not first.is_over, "who is at work stays, however old"
    jobs.stop()


# -- through the page -----------------------------------------------------------------------------


def test_a_real_job_from_its_form_to_its_record(folder: Path) -> None:
    site = make_site(folder, TOKEN, run=True, is_kept=False)
    pages = Client(make_app(site, TOKEN))
    assert "Start quantize" in pages.get(f"/{TOKEN}/jobs").text
    values = {"model": "a.tflite", "mode": "float16"}
    answer = pages.post(f"/{TOKEN}/jobs/start/quantize", values, **OWN)
    assert answer.status == 303 and answer.headers["location"] == f"/{TOKEN}/jobs/1"
    events = pages.get(f"/{TOKEN}/jobs/1/events").text  # ends with the job
    told = [json.loads(e.partition("data: ")[2]) for e in events.strip().split("\n\n")]
    assert told[-1]["state"] == DONE, told[-1]
    page = pages.get(f"/{TOKEN}/jobs/1").text
    assert "See the record" in page and "done" in page
    assert list(folder.glob("quantize-a-*.tflite")) and site.index.count() == 1


def test_a_wrong_form_is_a_page_with_the_reason(folder: Path) -> None:
    site = make_site(folder, TOKEN, run=True, is_kept=False)
    pages = Client(make_app(site, TOKEN))
    for values, said in (({"model": "x"}, "cannot be chosen"), ({}, "nothing is chosen")):
        answer = pages.post(f"/{TOKEN}/jobs/start/bench", values, **OWN)
        assert answer.status == 400 and said in answer.text and 'role="alert"' in answer.text
    answer = pages.post(f"/{TOKEN}/jobs/start/demo", {}, **OWN)
    assert answer.status == 400 and "no such job" in answer.text
    headers = OWN | {"content_type": "text/plain"}
    assert pages.post(f"/{TOKEN}/jobs/start/bench", {"model": "a"}, **headers).status == 400
    large = OWN | {"content_length": str(1 << 20)}
    assert pages.post(f"/{TOKEN}/jobs/start/bench", {"model": "a"}, **large).status == 413
    assert not site.jobs or not site.jobs.all


def test_without_run_nothing_can_be_started(folder: Path) -> None:
    site = make_site(folder, TOKEN, is_kept=False)
    pages = Client(make_app(site, TOKEN))
    assert "started to look only" in pages.get(f"/{TOKEN}/jobs").text
    answer = pages.post(f"/{TOKEN}/jobs/start/bench", BENCH, **OWN)
    assert "started to look only" in answer.text and site.jobs is None
    assert pages.get(f"/{TOKEN}/jobs/1").status == 404
    assert pages.get(f"/{TOKEN}/jobs/1/events").status == 404
    assert pages.get(f"/{TOKEN}/jobs/start/bench").status == 404


def test_a_job_that_is_told_later_has_what_is_new() -> None:
    job = Job(1, Command("bench", [], Path("bench.json")), "bench")
    for n in range(3):
        job.hear(f"line {n}")
    assert job.told(1)["lines"] == ["line 1", "line 2"] and job.told(3)["lines"] == []
