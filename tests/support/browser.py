"""The system's Chromium, driven by Playwright, and a server that it looks at."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

WIDE, NARROW = {"width": 1200, "height": 800}, {"width": 400, "height": 800}
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; where there is none, the test is skipped with the reason."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    # Tests run as root in containers, where Chromium's own sandbox does not start.
    with driver.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(folder: Path, *words: str) -> Iterator[str]:
    """The address of `sanderling serve` for a folder."""
    with subprocess.Popen(
        [sys.executable, "-m", "sanderling", "serve", str(folder), "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        yield address.rstrip("/")
        process.terminate()
        process.wait(20)


class Watched:
    """A page of the browser that keeps what must not happen: errors, dialogs, other hosts."""

    def __init__(self, browser: Any, address: str, scheme: str = "light") -> None:
        self.address = address
        self.wrong: list[str] = []
        self.context = browser.new_context(viewport=WIDE, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.wrong.append(f"request: {request.url}")

    def go(self, path: str = "/") -> Any:
        self.page.goto(self.address + path)
        return self.page

    @property
    def is_too_wide(self) -> bool:
        """Whether the page itself, not a box in it, scrolls sideways."""
        root = "document.documentElement"
        return bool(self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"))

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []
