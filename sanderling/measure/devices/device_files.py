"""Files that an evaluation needs on a device: sent once, found again by their content.

They lie in one folder under the digest of their bytes. A file is there if one of its name and size
is, so that a run that was interrupted goes on with the files that are missing, and a piece of a
file is sent anew. Each run has a folder of links to what it uses.
"""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from .adb import Adb
from .android_tools import TEMP, safe
from .device_options import Progress

STORE = f"{TEMP}/sanderling-files"
AT_ONCE = 100  # files of one command
CHUNK = 1 << 20


class DeviceStore:
    """The folder of one device."""

    def __init__(self, adb: Adb, progress: Progress) -> None:
        self.adb, self.progress = adb, progress
        self.adb.insist(f"mkdir -p {STORE}", f"mkdir {STORE}")

    def send(self, files: Sequence[Path]) -> list[str]:
        """The names of files in the store, once all are there."""
        names = [_name(file) for file in files]
        there = self._sizes()
        missing = {
            name: file
            for name, file in zip(names, files, strict=True)
            if there.get(name) != file.stat().st_size
        }
        with tempfile.TemporaryDirectory(prefix="sanderling-") as folder:
            links = list(_renamed(Path(folder), missing))
            for done in range(0, len(links), AT_ONCE):
                self.progress("push files", done, len(links))
                self.adb.push(links[done : done + AT_ONCE], f"{STORE}/")
        return names

    def _sizes(self) -> dict[str, int]:
        found = self.adb.insist(f"find {STORE} -type f -exec stat -c '%s %n' {{}} +", "find")
        rows = (line.split(None, 1) for line in found.splitlines() if line.strip())
        return {PurePosixPath(path).name: int(size) for size, path in rows}

    def link(self, names: Sequence[str], folder: str) -> list[str]:
        """A folder of links; a file that comes twice has another name the second time."""
        place = shlex.quote(folder)
        self.adb.insist(f"mkdir -p {place}", f"mkdir {folder}")
        links = list(_distinct(names))
        depth = "../" * (len(PurePosixPath(folder).parts) - len(PurePosixPath(TEMP).parts))
        store = f"{depth}{PurePosixPath(STORE).name}"
        once = [name for name, link in zip(names, links, strict=True) if name == link]
        again = [(name, link) for name, link in zip(names, links, strict=True) if name != link]
        if once:
            # One `ln` for many: a phone takes milliseconds to start each.
            fed = "".join(f"{store}/{name}\n" for name in once)
            command = f"cd {place} && xargs -n {AT_ONCE} sh -c 'ln -s \"$@\" .' _"
            self._fed(command, fed)
        if again:
            fed = "".join(f"{store}/{name} {link}\n" for name, link in again)
            self._fed(f"cd {place} && xargs -n 2 ln -s", fed)
        return links

    def _fed(self, command: str, fed: str) -> None:
        limit = self.adb.timeout + fed.count("\n") / AT_ONCE
        answer = self.adb.shell(command, timeout=limit, fed=fed.encode())
        if answer.status:
            raise self.adb.complaint(answer, "ln -s")


def _name(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
    return f"{digest.hexdigest()}{safe(file.suffix.lower())}"


def _renamed(folder: Path, files: Mapping[str, Path]) -> Iterator[Path]:
    """adb pushes several files under their own names only: links give them others."""
    for name, file in files.items():
        (folder / name).symlink_to(file.resolve())
        yield folder / name


def _distinct(names: Sequence[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for name in names:
        stem, dot, suffix = name.partition(".")
        yield f"{stem}-{seen[name]}{dot}{suffix}" if seen[name] else name
        seen[name] += 1
