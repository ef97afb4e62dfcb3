"""`sanderling serve` in Debian's Chromium: what only a browser shows. What the server answers is
tested without one in `test_serve.py` and `test_serve_jobs.py`."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .support import serve_records
from .support.browser import NARROW, WIDE, Watched, chromium, served
from .support.command_line import DATA
from .support.serve_records import KOREAN

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow  # a browser and a server are started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    """A record of every verb, hostile ones, and a thousand more."""
    place = tmp_path_factory.mktemp("served")
    for name in ("kind-of-record", "hostile", "nights"):
        (place / name).mkdir()
    serve_records.of_all_verbs(place / "kind-of-record")
    serve_records.models(place)
    shutil.copy(DATA / "digits_test.npz", place / "digits.npz")
    serve_records.hostile(place / "hostile")
    serve_records.many(place / "nights", 1000)
    return place


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder, "--run") as found:
        yield found


def paths(page: Any, words: str) -> list[str]:
    """Addresses of links, from the token on."""
    found = page.eval_on_selector_all(f"a[href*='{words}']", "all => all.map(a => a.href)")
    return list(dict.fromkeys("/" + "/".join(str(f).split("/")[4:]) for f in found))


def test_every_page_wide_and_narrow(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    # Records in the folder itself, one of each kind; a thousand others lie in folders below it.
    page = watched.go("/?q=kind-of-record")
    records = paths(page, "/record/")
    others = ["/", "/models", "/traces", "/history", "/jobs", "/model?name=b.tflite&colour=error",
              "/history?model=a.tflite&setting=sanderling,+1+thread"]  # fmt: skip
    assert len(records) == len(serve_records.VERBS) + len(serve_records.MADE) + 2
    for path in others + records:
        page = watched.go(path)
        assert page.locator("h1").count() == 1 and page.locator("main").count() == 1
        boxes = page.locator("[data-chart]").count()
        assert page.locator("[data-chart] canvas").count() == boxes, path
        for size in (WIDE, NARROW):
            page.set_viewport_size(size)
            assert not watched.is_too_wide, (path, size)
    watched.close()


def test_colours_follow_the_scheme_and_the_figure(browser: Any, address: str) -> None:
    fill = "e => getComputedStyle(e).fill"
    seen = set()
    for scheme in ("light", "dark"):
        watched = Watched(browser, address, scheme=scheme)
        page = watched.go("/model?name=b.tflite&colour=latency")
        nodes = page.locator(".graph .node rect")
        fills = {nodes.nth(n).evaluate(fill) for n in range(nodes.count())}
        assert len(fills) > 2
        seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        watched.close()
    assert len(seen) == 2


WRITTEN = """window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.written.push(text);
  return fill.call(this, text, ...rest);
};"""


def test_the_points_of_a_comparison_have_names(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    (record,) = paths(watched.go("/?q=compare.json"), "/record/")
    watched.page.add_init_script(WRITTEN)
    written = watched.go(record).evaluate("window.written")
    assert {f"{model}, sanderling, 1 thread" for model in "abc"} <= set(written)
    assert "size, KiB" in written
    watched.close()


def test_the_keyboard_is_enough(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    page = watched.go("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#content"
    page.get_by_label("Search").focus()
    page.keyboard.type("tune")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=tune**")
    assert page.get_by_role("link", name="tune.json").count() == 1
    assert page.get_by_role("navigation", name="Main").count() == 1
    assert page.get_by_role("columnheader", name="models").count() == 1
    watched.close()


PERFETTO = """<!doctype html><title>waiting</title><script>
addEventListener("message", event => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) {
    const { buffer, fileName } = event.data.perfetto;
    document.title = `${fileName}: ${new TextDecoder().decode(buffer).slice(0, 1)}`;
  }
});
</script>"""


def test_a_trace_is_handed_to_perfetto_by_a_click(browser: Any, address: str) -> None:
    """To a page that answers as Perfetto's does; until the click no request leaves this machine."""
    watched = Watched(browser, address)
    page = watched.go("/traces")
    watched.context.route(
        "https://ui.perfetto.dev/**",
        lambda route: route.fulfill(body=PERFETTO, content_type="text/html"),
    )
    with watched.context.expect_page() as opened:
        page.get_by_role("button", name="Open kind-of-record/a-trace.json in Perfetto").click()
    opened.value.wait_for_function("document.title !== 'waiting' && document.title")
    assert opened.value.title() == "kind-of-record/a-trace.json: {"
    watched.close()


def test_a_thousand_records(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    page = watched.go("/?q=night")
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("link", name="Older").click()
    page.get_by_text("page 2 of 20").wait_for()
    page.get_by_label("Model").select_option("model3.tflite")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("100 records").wait_for()
    watched.close()


def test_hostile_records_are_text(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    for path in paths(watched.go("/?q=hostile/"), "/record/"):
        page = watched.go(path)
        assert page.locator("script:not([src])").count() == 0
        assert page.locator("img[src='x']").count() == 0
    assert watched.go("/?q=hostile/").get_by_text(KOREAN).count() >= 1
    watched.close()


# form -> what is chosen, what is typed in, and a word of its record's page
STARTED: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "Benchmark": ({"Model": "a.tflite"}, {"Seconds for each setting": "0.1"}, "median"),
    "Difference": ({"Reference": "a.tflite", "Test": "b.tflite"}, {"Runs": "2"}, "hidden1"),
    "Quantisation": ({"Model": "a.tflite", "Mode": "dynamic"}, {}, "that stayed float"),
    "Evaluation": ({"Model": "a.tflite", "Against": "b.tflite", "Arrays or pictures": "digits.npz"},
                   {"At most so many samples": "40", "Inputs are divided by": "1"}, "top1"),
}  # fmt: skip


def start(page: Any, name: str, chosen: dict[str, str], typed: dict[str, str]) -> None:
    """Fill in a form, and come to the page of its job."""
    form = page.get_by_role("form", name=name)
    for label, value in chosen.items():
        form.get_by_label(label, exact=True).select_option(value)
    for label, value in typed.items():
        form.get_by_label(label, exact=True).fill(value)
    form.get_by_role("button").click()
    page.wait_for_url("**/jobs/*")


@pytest.mark.parametrize("name", STARTED)
def test_a_job_is_started_watched_and_leads_to_its_record(
    browser: Any, address: str, name: str
) -> None:
    chosen, typed, word = STARTED[name]
    watched = Watched(browser, address)
    page = watched.go("/jobs")
    start(page, name, chosen, typed)
    assert page.get_by_role("status").count() == 1
    page.get_by_role("link", name="See the record").click(timeout=120_000)
    page.get_by_role("heading", name=name).first.wait_for()
    assert word in page.locator("main").inner_text()
    page.go_back()
    assert page.locator("#job-share").evaluate("e => e.value") == 1
    assert page.locator("#job-state").inner_text() == "done"
    watched.close()


def test_a_job_that_fails_says_why(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    page = watched.go("/jobs")
    start(page, "Evaluation", {"Model": "a.tflite", "Arrays or pictures": "digits.npz"}, {})
    page.locator("#job-state", has_text="failed").wait_for(timeout=120_000)
    said = page.get_by_role("log").inner_text()
    assert "is uint8, the model takes" in said and "--std 255" in said
    assert page.get_by_role("link", name="See the record").count() == 0
    watched.close()


def test_a_job_is_cancelled(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    page = watched.go("/jobs")
    start(page, "Benchmark", {"Model": "a.tflite"}, {"Seconds for each setting": "60"})
    page.get_by_role("button", name="Cancel").click()
    page.locator("#job-state", has_text="cancelled").wait_for()
    watched.close()


def test_a_wrong_token_says_what_to_do(browser: Any, address: str) -> None:
    watched = Watched(browser, address)
    answer = watched.page.goto(address[:-3] + "xyz/")
    assert answer.status == 403
    assert watched.page.get_by_text("Open the whole address").count() == 1
    watched.wrong = [w for w in watched.wrong if "403" not in w]  # the page itself
    watched.close()


class Other(http.server.BaseHTTPRequestHandler):
    """A page of somebody else's."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>other</title>")

    def log_message(self, *_: object) -> None:
        pass


def test_another_page_starts_nothing(browser: Any, address: str) -> None:
    """Even one that knows the token."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://localhost:{server.server_port}/")
    before = page.request.get(f"{address}/jobs").text().count("/jobs/")
    form = (
        "address => fetch(address + '/jobs/start/bench', {method: 'POST', mode: 'no-cors', "
        "body: new URLSearchParams({model: 'a.tflite'})}).then(() => 'sent', () => 'refused')"
    )
    page.evaluate(form, address)
    read = "address => fetch(address + '/').then(a => a.text(), () => 'refused')"
    assert page.evaluate(read, address) == "refused"
    assert page.request.get(f"{address}/jobs").text().count("/jobs/") == before
    context.close()
    server.shutdown()
