"""The pictures of docs/serve.md: pages of a folder that `sanderling demo` left, light and dark.

python scripts/screenshots.py FOLDER    (needs the extra [dev] and Chromium)
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Watched, chromium, served  # noqa: E402

SIZE = {"width": 900, "height": 620}
# name of the picture -> the page's address, and the colour scheme
SHOTS = {
    "serve_records": ("/", "light"),
    "serve_graph": ("/model?name=digits_f32.tflite&colour=latency", "dark"),
    "serve_bench": ("/record/{bench}", "light"),
}


def main(folder: Path) -> None:
    with served(folder) as address, chromium() as browser:
        for name, (path, scheme) in SHOTS.items():
            watched = Watched(browser, address, scheme)
            page = watched.go("/?verb=bench")
            record = page.locator("a[href*='/record/']").first.get_attribute("href")
            page.set_viewport_size(SIZE)
            watched.go(path.format(bench=str(record).rpartition("/")[2]))
            page.screenshot(path=ROOT / "docs" / f"{name}.png")
            watched.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
