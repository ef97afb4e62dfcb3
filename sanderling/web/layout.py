"""The frame of every page: landmarks, navigation, style sheet, scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .markup import Markup, heading, joined, link, tag

SECTIONS = {
    "": "Records",
    "models": "Models",
    "history": "History",
    "traces": "Traces",
    "jobs": "Jobs",
}


@dataclass(frozen=True)
class Page:
    """A page: its heading, the section of the navigation that it belongs to, its parts."""

    title: str
    section: str
    parts: Iterable[Markup]
    status: int = 200


def bare_page(title: str, parts: Iterable[Markup]) -> str:
    """Without style sheet and navigation: for who may not see those."""
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("title", f"{title} - Sanderling"), _NO_ICON
    )
    body = tag("body", tag("main", heading(title, 1), *parts))
    return "<!doctype html>\n" + tag("html", head, body, lang="en")


# A page without an icon makes the browser ask for one at an address that has no token.
_NO_ICON = tag("link", rel="icon", href="data:,")


def whole_page(page: Page, base: str, folder: str) -> bytes:
    static = f"{base}/static"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} - Sanderling"),
        tag("link", rel="icon", href=f"{static}/icon.svg"),
        tag("link", rel="stylesheet", href=f"{static}/uPlot.min.css"),
        tag("link", rel="stylesheet", href=f"{static}/style.css"),
        tag("script", src=f"{static}/uPlot.iife.min.js", defer=True),
        tag("script", src=f"{static}/charts.js", defer=True),
        tag("script", src=f"{static}/jobs.js", defer=True),
        tag("script", src=f"{static}/perfetto.js", defer=True),
    )
    body = tag(
        "body",
        link("#content", "Skip to the content", class_="skip"),
        tag(
            "header",
            tag("p", link(f"{base}/", "Sanderling"), class_="brand"),
            tag("nav", *(_item(base, k, page.section) for k in SECTIONS), aria_label="Main"),
        ),
        tag("main", heading(page.title, 1), *page.parts, id="content", tabindex=-1),
        tag("footer", tag("p", "Records of ", tag("span", folder, class_="path"))),
    )
    html = "<!doctype html>\n" + joined([tag("html", head, body, lang="en")]) + "\n"
    return html.encode("utf-8", "backslashreplace")


def _item(base: str, section: str, current: str) -> Markup:
    is_here = "page" if section == current else None
    return link(f"{base}/{section}", SECTIONS[section], aria_current=is_here)
