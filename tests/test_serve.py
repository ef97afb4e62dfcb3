"""`sanderling serve` without a browser: its pages, who may ask, the index, hostile records."""

from __future__ import annotations

import errno
import html
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sanderling
from sanderling.web import record_file
from sanderling.web.graph_drawing import Node, heat, placed, svg
from sanderling.web.markup import Markup, tag, text
from sanderling.web.record_index import RecordIndex, Wanted
from sanderling.web.server import make_app, make_site
from sanderling.web.views import VIEWS

from .support import serve_records
from .support.asgi_client import Client
from .support.command_line import call
from .support.serve_records import HOSTILE, KOREAN, SCRIPT

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

TOKEN = "the-token"


def client(folder: Path, run: bool = False) -> Client:
    site = make_site(folder, TOKEN, run, is_kept=False)
    return Client(make_app(site, TOKEN))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("records")
    serve_records.of_all_verbs(folder)
    yield client(folder)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("hostile")
    serve_records.hostile(folder)
    yield client(folder)


def links(pages: Client, address: str = "/") -> dict[str, str]:
    """The records of a list: their files and addresses."""
    found = re.findall(rf'href="/{TOKEN}(/record/\d+)">([^<]*)<', get(pages, address))
    return {html.unescape(name): place for place, name in found}


def get(pages: Client, address: str, status: int = 200) -> str:
    answer = pages.get(f"/{TOKEN}{address}")
    assert answer.status == status, answer.text
    assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
    return answer.text


# -- pages ----------------------------------------------------------------------------------------

# file of a record -> what its page must show
SHOWN = {
    "bench.json": ["Latency of each model and setting", "Ratios of settings", "0.600"],
    "profile.json": ["Steps of a run", "reference", "drawn in colours"],
    "diff.json": ["How far the answers are apart", "Errors of each op", "hidden1"],
    "eval.json": ["Figures of the task", "Differences, paired by sample", "top1"],
    "quantize.json": ["dynamic", "KiB to"],
    "suggest.json": ["Other modes", "sanderling quantize"],
    "run.json": ["Outputs", "probabilities"],
    "trace.json": ["later runs", "ui.perfetto.dev"],
    "rewrite.json": ["refused", "gpu"],
    "inspect.json": ["full integer", "CONV_2D"],
    "tune.json": ["take 2 threads", "Stages of the search", "0.800"],
    "compare.json": ["Accuracy against latency", "Accuracy against size", "beaten by"],
    "retrain.json": ["90.00%, 2 classes", KOREAN],
    "prune.json": ["Weights of each layer", "Epochs", "Score against size", "50.00%"],
    "unknown.json": ["sanderling.later/9", "The record"],
}


@pytest.mark.parametrize("name", SHOWN)
def test_every_kind_of_record_has_a_page(name: str, pages: Client) -> None:
    page = get(pages, links(pages)[name])
    for words in SHOWN[name]:
        assert words in page
    assert "not what its schema says" not in page
    assert "<script>" not in page and "style=" not in page


def test_every_view_is_among_those_that_are_tried() -> None:
    verbs = {Path(name).stem for name in SHOWN}
    alike = {"qat": "quantize", "cluster": "prune", "benchmark_model": "bench"}
    other = {"advise", "devices"}  # tested below
    assert {alike.get(v, v) for v in VIEWS} - other <= verbs


def test_advice_and_devices(tmp_path: Path) -> None:
    serve_records.put(tmp_path, "advise.json", serve_records.advise())
    gpu = {"number": 0, "name": "a GPU", "interface": "opencl", "driver": "1"}
    devices = {"schema": "sanderling.devices/1", "gpus": [gpu], "phones": [], "remarks": ["none"]}
    serve_records.put(tmp_path, "devices.json", devices)
    pages = client(tmp_path)
    found = links(pages)
    page = get(pages, found["advise.json"])
    assert "most is gained by int8" in page and "sanderling quantize" in page and "0.500" in page
    assert "a GPU" in get(pages, found["devices.json"])


def test_the_list_is_searched_and_filtered(pages: Client) -> None:
    assert len(links(pages)) == len(SHOWN) + 1
    assert set(links(pages, "/?verb=bench")) == {"bench.json", "bench-later.json"}
    assert set(links(pages, "/?q=TUNE")) == {"tune.json"}
    assert "eval.json" in links(pages, "/?model=b.tflite")
    assert "tune.json" not in links(pages, "/?model=b.tflite")
    assert "No record fits" in get(pages, "/?q=nothing-has-this")
    assert links(pages, "/?page=99999999999") and links(pages, "/?page=-1")


def test_a_model_is_drawn_in_colours(pages: Client) -> None:
    assert "b.tflite" in get(pages, "/models")
    for colour, words in {"latency": "heat-9", "error": "error 0", "delegate": "kind-0"}.items():
        page = get(pages, f"/model?name=b.tflite&colour={colour}")
        assert words in page and "FULLY_CONNECTED" in page and page.count("<rect") >= 5
    assert "Its graph is not known" in get(pages, "/model?name=c.tflite")
    assert "No profile of this model" in get(pages, "/model?name=a.tflite")


def test_history_tells_regressions(pages: Client) -> None:
    assert "slower" in get(pages, "/history")
    page = get(pages, "/history?model=a.tflite&setting=sanderling,+1+thread")
    assert "slower" in page and "data-chart=" in page and "bench-later.json" in page
    assert "Nothing was measured" in get(pages, "/history?model=x&setting=y")


def test_pictures_of_samples_that_two_models_disagree_on(pages: Client) -> None:
    place = links(pages)["eval.json"]
    page = get(pages, place)
    number = place.rpartition("/")[2]
    assert "Samples that the two disagree on" in page and f"/picture/{number}/0" in page
    answer = pages.get(f"/{TOKEN}/picture/{number}/0")
    assert answer.headers["content-type"] == "image/png" and answer.content[1:4] == b"PNG"


def test_traces_are_files_to_save(pages: Client) -> None:
    page = get(pages, "/traces")
    assert "a-trace.json" in page and 'href="https://ui.perfetto.dev"' in page
    assert re.findall(r'data-name="([^"]*)"', page) == ["a-trace.json"]  # trace.json is a record
    answer = pages.get(f"/{TOKEN}/file?path=a-trace.json")
    assert answer.status == 200 and "attachment" in answer.headers["content-disposition"]
    get(pages, "/file?path=a.tflite", 404)
    get(pages, "/file?path=../../etc/passwd", 404)
    get(pages, "/file?path=%00", 404)


def test_what_is_not_there_is_said(pages: Client) -> None:
    assert "there is no record" in get(pages, "/record/9999", 404)
    assert "there is no such page" in get(pages, "/nowhere", 404)
    assert pages.get(f"/{TOKEN}/static/server.py").status == 404
    assert pages.get(f"/{TOKEN}/static/..%2fserver.py").status == 404
    get(pages, "/record/99999999999999999999999", 404)


def test_a_folder_without_records(tmp_path: Path) -> None:
    pages = client(tmp_path)
    assert "This folder has no record yet" in get(pages, "/")
    assert "There is no model" in get(pages, "/models")
    assert "No benchmark" in get(pages, "/history")
    assert "No trace file" in get(pages, "/traces")


# -- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/wrong/", "/the-toke/", "/static/style.css", "//", "/%ff/"])
def test_a_wrong_token_is_refused(pages: Client, path: str) -> None:
    answer = pages.get(path)
    assert answer.status == 403 and "Open the whole address" in answer.text
    assert TOKEN not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "10.0.0.1"])
def test_another_name_for_this_machine_is_refused(pages: Client, host: str) -> None:
    answer = pages.get(f"/{TOKEN}/", host=host)
    assert answer.status == 403 and "own name" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:9", "LOCALHOST", "[::1]:80"])
def test_its_own_names_are_taken(pages: Client, host: str) -> None:
    assert pages.get(f"/{TOKEN}/", host=host).status == 200


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://localhost:1"])
def test_another_origin_starts_nothing(tmp_path: Path, origin: str | None) -> None:
    pages = client(tmp_path, run=True)
    headers = {"origin": origin} if origin else {}
    answer = pages.post(f"/{TOKEN}/jobs/start/bench", {"model": "a"}, **headers)
    assert answer.status == 403 and "another page" in answer.text


# -- hostile and broken records -------------------------------------------------------------------


def test_hostile_names_are_text(bad: Client) -> None:
    places = ["/", "/models", "/history", "/traces", *links(bad).values()]
    places += re.findall(rf'href="/{TOKEN}(/(?:model|history)\?[^"]*)"', get(bad, "/models"))
    places += re.findall(rf'href="/{TOKEN}(/history\?[^"]*)"', get(bad, "/history"))
    assert len(places) > 12
    for place in places:
        page = get(bad, html.unescape(place))
        assert SCRIPT not in page and "onerror=alert(2)>" not in page and "\u202e" not in page
        assert "<img src=x" not in page


def test_what_is_wrong_with_a_file_is_said(bad: Client) -> None:
    page = get(bad, "/")
    assert "not well-formed JSON" in page and "nested too deeply" in page
    assert "somebody-else" not in page and "link.json" not in page
    found = links(bad)
    assert "not what its schema says" in get(bad, found["wrong.json"])
    assert "cannot be shown" in get(bad, found["corrupt.json"])
    assert KOREAN in get(bad, found[f"{KOREAN}.json"])
    assert HOSTILE[:20] not in page


def test_no_file_outside_is_shown_as_a_picture(bad: Client) -> None:
    number = links(bad)["eval.json"].rpartition("/")[2]
    for place in range(3):
        answer = bad.get(f"/{TOKEN}/picture/{number}/{place}")
        assert answer.headers["content-type"] == "image/svg+xml" and b"root:" not in answer.content


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "LARGEST", 1000)
    serve_records.put(tmp_path, "large.json", serve_records.bench())
    pages = client(tmp_path)
    assert "was not read" in get(pages, links(pages)["large.json"])


# -- the index ------------------------------------------------------------------------------------


def test_the_index_follows_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.web.record_index.FRESH", 0.0)
    index = RecordIndex(tmp_path, is_kept=False)
    serve_records.put(tmp_path, "one.json", serve_records.bench())
    index.refresh()
    assert [r.path for r in index.rows()] == ["one.json"] and index.models() == [("a.tflite", 1)]
    serve_records.put(tmp_path, "one.json", serve_records.bench("other.tflite"))
    os.utime(tmp_path / "one.json", ns=(1, 1))
    index.refresh()
    assert index.models() == [("other.tflite", 1)]
    (tmp_path / "one.json").unlink()
    index.refresh()
    assert index.rows() == [] and index.models() == [] and index.series() == []


def test_the_index_is_kept_and_a_damaged_one_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    serve_records.put(folder, "one.json", serve_records.bench())
    RecordIndex(folder).refresh()
    (kept,) = (tmp_path / "cache" / "serve").iterdir()
    read: list[Path] = []
    again = RecordIndex(folder)
    monkeypatch.setattr("sanderling.web.record_index.read_record", read.append)
    again.refresh()
    assert again.count() == 1 and not read
    again.close()
    monkeypatch.undo()
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    kept.write_bytes(b"this is no database" * 100)
    anew = RecordIndex(folder)
    anew.refresh()
    assert anew.count() == 1


def test_a_thousand_records(tmp_path: Path) -> None:
    serve_records.many(tmp_path, 1000)
    pages = client(tmp_path)
    page = get(pages, "/")
    assert "1000 records" in page and page.count("/record/") == 50 and "page 1 of 20" in page
    last = get(pages, "/?page=19&verb=bench")
    assert "page 20 of 20" in last and "Newer" in last and "Older" not in last
    assert "100 records" in get(pages, "/?model=model3.tflite")
    assert links(pages, "/?q=night0777")
    assert get(pages, "/history").count("/history?") == 10


def test_words_are_found_whatever_they_are(tmp_path: Path) -> None:
    serve_records.put(tmp_path, f"{KOREAN}.json", serve_records.bench("100%_'\".tflite"))
    index = RecordIndex(tmp_path, is_kept=False)
    index.refresh()
    for words in (KOREAN, "100%_'", '"', "%", "'; drop table records"):
        assert index.count(Wanted(words)) == (0 if "drop" in words else 1), words


# -- pieces ---------------------------------------------------------------------------------------


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("b", "<i>", Markup("<i>x</i>"), None) == "<b>&lt;i&gt;<i>x</i></b>"
    assert tag("a", href='"><script>', hidden=True, title=None) == (
        '<a href="&quot;&gt;&lt;script&gt;" hidden></a>'
    )
    assert text(float("nan")) == "-" and text("a\u202eb\x00") == "a\\u202eb\\x00"


def test_a_graph_has_no_two_ops_at_one_place() -> None:
    nodes = [Node(0, "A", "", []), Node(1, "B", "", [0]), Node(2, "C", "", [0]),
             Node(3, "D", "", [1, 2, 0])]  # fmt: skip
    drawing = placed(nodes)
    assert len(set(drawing.places.values())) == 4 and drawing.places[3][0] == 2
    assert svg(nodes, "latency", "graph").count("<path") == 5
    assert [heat(v, 1.0) for v in (None, 0.0, 1.0, 2.0)] == [
        "heat-none",
        "heat-0",
        "heat-9",
        "heat-9",
    ]


# -- the command ----------------------------------------------------------------------------------


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = call("serve", tmp_path, "--port", port, "--no-browser", status=2).output
    assert f"port {port} is in use" in said and "--port" in said


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    assert "no such folder" in call("serve", tmp_path / "x", "--no-browser", status=2).output


def test_without_the_extra_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = call("serve", tmp_path, "--no-browser", status=2).output
    assert "pip install 'sanderling[serve]'" in said
    with pytest.raises(sanderling.MissingExtraError):
        sanderling.serve(tmp_path)


def test_it_serves_until_ctrl_c(tmp_path: Path) -> None:
    serve_records.put(tmp_path, "one.json", serve_records.bench())
    with subprocess.Popen(
        [sys.executable, "-m", "sanderling", "serve", str(tmp_path), "--no-browser", "--run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", address)
        assert b"one.json" in _fetched(address)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[1]
    assert process.returncode == 0 and "Traceback" not in said and "ended" in said


def _fetched(address: str) -> bytes:
    from urllib.request import urlopen

    for _ in range(100):
        try:
            with urlopen(address, timeout=10) as answer:
                return bytes(answer.read())
        except OSError as error:
            if getattr(error, "reason", error) and error.errno not in (errno.ECONNREFUSED, None):
                raise
            time.sleep(0.05)
    raise AssertionError("it did not answer")
