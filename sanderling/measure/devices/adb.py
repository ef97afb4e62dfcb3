"""adb: one command at a time, each with a time limit, its complaints turned into sentences."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ...errors import InputError, SanderlingError

TIMEOUT = 30.0
PUSH_BYTES_PER_SECOND = 1e6  # a slow cable; the limit of a push grows with the file
# Places of the SDK's copy, where it is not on PATH.
_HOMES = (
    "~/Android/Sdk/platform-tools/adb",
    "~/Library/Android/sdk/platform-tools/adb",
    "/usr/lib/android-sdk/platform-tools/adb",
)


class DeviceError(SanderlingError, RuntimeError):
    """The device was there and did not do what it was asked to."""


class DeviceLostError(DeviceError):
    """The device does not answer any more."""


@dataclass(frozen=True)
class Complaint:
    """What adb says, in its words, and in ours."""

    pattern: str
    what: str
    fix: str
    kind: type[DeviceError | InputError] = InputError


_PLUG = "connect it, switch on USB debugging, and look at 'adb devices'"
COMPLAINTS = (
    Complaint(r"no devices/emulators found|no devices found", "no device is connected", _PLUG),
    Complaint(r"more than one device", "several devices are connected",
              "say which one: --device android:SERIAL ('adb devices' lists them)"),
    Complaint(r"device unauthorized", "the device has not authorised this computer",
              "unlock it and accept the question about USB debugging"),
    Complaint(r"device offline|device still (?:connecting|authorizing)|device is offline",
              "the device is offline",
              "plug it in again, or restart adb: adb kill-server; adb start-server"),
    Complaint(r"device '([^']*)' not found", "there is no device '{0}'",
              "'adb devices' lists those that are connected", DeviceLostError),
    Complaint(r"device not found|protocol fault|connection reset|closed$|device disconnected",
              "the device was disconnected", "check the cable and try again", DeviceLostError),
    Complaint(r"No space left on device|ENOSPC|INSTALL_FAILED_INSUFFICIENT_STORAGE|"
              r"not enough space", "the device's disk is full",
              "make room: adb shell df /data", DeviceError),
    Complaint(r"Permission denied", "the device refuses: permission denied",
              "adb shell must be able to write and run files in /data/local/tmp", DeviceError),
    Complaint(r"Read-only file system", "the device's disk cannot be written",
              "use a device whose /data/local/tmp is writable", DeviceError),
    Complaint(r"Failure \[([A-Z_]+)[^\]]*\]|(INSTALL_[A-Z_]+)",
              "the app cannot be installed: {0}", "check that the .apk is for this device's CPU",
              DeviceError),
    Complaint(r"insufficient permissions|no permissions|USB permission failure",
              "this computer may not use the USB device",
              "see developer.android.com/tools/device.html about udev rules"),
    Complaint(r"cannot connect to daemon|failed to start daemon|failed to check server version",
              "adb's server does not run", "start it: adb start-server"),
)  # fmt: skip


def find(adb: str) -> str:
    found = shutil.which(adb)
    if found is None and adb == "adb":
        found = next((str(p) for p in (Path(h).expanduser() for h in _HOMES) if p.is_file()), None)
    if found is None:
        raise InputError(
            f"the command '{adb}' is not there",
            where="--device android",
            fix="install Android's platform tools (Debian: apt-get install adb), "
            "or say where it is with --adb PATH",
        )
    return found


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str = ""

    @property
    def text(self) -> str:
        return self.out + self.err


@dataclass
class Adb:
    """One device, or the only one. complaints: what its command says, and what that means."""

    command: str = "adb"
    serial: str = ""
    timeout: float = TIMEOUT
    path: str = field(init=False)
    complaints: ClassVar[tuple[Complaint, ...]] = COMPLAINTS

    def __post_init__(self) -> None:
        self.path = find(self.command)

    def words(self, *words: str) -> list[str]:
        """The command line of this device's adb."""
        return [self.path, *(["-s", self.serial] if self.serial else []), *words]

    def raw(self, *words: str, timeout: float | None = None, fed: bytes = b"") -> Answer:
        """Run adb; fed: what the command reads."""
        done = self._run(words, timeout, fed)
        out, err = (b.decode("utf-8", "replace") for b in (done.stdout, done.stderr))
        return Answer(done.returncode, out.replace("\r\n", "\n"), err)

    def _run(
        self, words: tuple[str, ...], timeout: float | None = None, fed: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """A device that is gone lets some commands wait forever: they are ended."""
        limit = self.timeout if timeout is None else timeout
        line = self.words(*words)
        try:
            return subprocess.run(line, capture_output=True, input=fed, timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise self._no_answer(words, limit) from error
        except OSError as error:
            raise InputError(
                f"it cannot be run: {error.strerror}", where=self.path, fix="check --adb"
            ) from error

    def _no_answer(self, words: tuple[str, ...], limit: float) -> DeviceLostError:
        return DeviceLostError(
            f"no answer within {limit:g} s to 'adb {words[0]}'",
            where=self.name,
            fix="check the cable, or raise the time limit",
        )

    @property
    def name(self) -> str:
        return f"android:{self.serial}" if self.serial else "android"

    def __call__(self, *words: str, timeout: float | None = None) -> str:
        """Run adb and insist that it went well."""
        answer = self.raw(*words, timeout=timeout)
        if answer.status or "Failure [" in answer.out:
            raise self.complaint(answer, f"adb {words[0]}")
        return answer.out

    def complaint(self, answer: Answer, doing: str) -> DeviceError | InputError:
        for known in self.complaints:
            found = re.search(known.pattern, answer.text, re.M)
            if found is not None:
                named = next((g for g in found.groups() if g), "")
                return known.kind(known.what.format(named), where=self.name, fix=known.fix)
        said = " ".join(answer.text.split())[-300:] or "nothing"
        return DeviceError(
            f"'{doing}' ended with status {answer.status} and said: {said}",
            where=self.name,
            fix="try the command by hand",
        )

    def shell(self, command: str, timeout: float | None = None, fed: bytes = b"") -> Answer:
        """Run a command on the device. Its status is printed, because adb of old devices keeps it
        to itself; without that line the device was lost on the way."""
        mark = f"sanderling-{uuid.uuid4().hex[:8]}"
        line = f"{command}; s=$?; echo; echo {mark}=$s"
        answer = self.raw("shell", line, timeout=timeout, fed=fed)
        out, found, rest = answer.out.rpartition(f"{mark}=")
        status = rest.split("\n")[0].strip()
        if not found or not status.isdecimal():
            raise self._lost(answer)
        return Answer(int(status), out.removesuffix("\n").removesuffix("\n"), answer.err)

    def insist(self, command: str, doing: str) -> str:
        """Run a command on the device that must go well."""
        answer = self.shell(command)
        if answer.status:
            raise self.complaint(answer, doing)
        return answer.out

    def _lost(self, answer: Answer) -> DeviceError | InputError:
        """What the benchmark had printed until then is no complaint: only stderr counts."""
        known = self.complaint(Answer(answer.status, "", answer.err), "adb shell")
        if type(known) is not DeviceError:
            return known
        return DeviceLostError(
            "the device was disconnected while it worked",
            where=self.name,
            fix="check the cable and try again",
        )

    def properties(self, *names: str) -> list[str]:
        lines = self.shell("; ".join(f"getprop {name}" for name in names)).out.splitlines()
        return [line.strip() for line in [*lines, *[""] * len(names)][: len(names)]]

    def push(self, local: Path | Sequence[Path], remote: str) -> None:
        """A file to a place, or several into a folder."""
        files = [local] if isinstance(local, Path) else local
        size = sum(file.stat().st_size for file in files)
        limit = self.timeout + size / PUSH_BYTES_PER_SECOND
        self("push", *map(str, files), remote, timeout=limit)

    def content(self, remote: str) -> bytes:
        """A file of the device, whole; b"" where there is none. `pull` may not read every folder
        that the shell may."""
        counted = self.shell(f"wc -c < {shlex.quote(remote)}")
        size = int(counted.out) if counted.status == 0 and counted.out.strip().isdecimal() else 0
        if not size:
            return b""
        limit = self.timeout + size / PUSH_BYTES_PER_SECOND
        found = self._run(("exec-out", f"cat {shlex.quote(remote)}"), limit).stdout
        if len(found) != size:
            raise DeviceLostError(
                f"of {size} bytes of {remote} only {len(found)} came",
                where=self.name,
                fix="check the cable and try again",
            )
        return found

    def exists(self, path: str) -> bool:
        return self.shell(f"test -e {shlex.quote(path)}").status == 0


def choose(adb: Adb) -> Adb:
    """The device that is meant, ready to be used; its serial is known from here on."""
    rows = connected(adb)
    if adb.serial:
        if adb.serial not in rows:
            there = ", ".join(rows) or "none"
            raise InputError(
                f"there is no device '{adb.serial}'",
                where="--device",
                fix=f"connected are: {there}",
            )
        _check_state(adb, rows[adb.serial])
        return adb
    if not rows:
        raise adb.complaint(Answer(1, "", "no devices/emulators found"), "adb devices")
    ready = [serial for serial, state in rows.items() if state == "device"]
    if len(rows) > 1 and len(ready) != 1:
        raise InputError(
            "several devices are connected: " + ", ".join(rows),
            where="--device",
            fix="say which one: --device android:SERIAL",
        )
    chosen = Adb(adb.command, ready[0] if ready else next(iter(rows)), adb.timeout)
    _check_state(chosen, rows[chosen.serial])
    return chosen


def connected(adb: Adb) -> dict[str, str]:
    """Serials with their states."""
    answer = Adb(adb.command, "", adb.timeout).raw("devices")
    if answer.status:
        raise adb.complaint(answer, "adb devices")
    _, _, below = answer.out.partition("List of devices attached")
    rows = (line.split(None, 1) for line in below.splitlines() if line.strip())
    return {row[0]: row[1].strip() if len(row) > 1 else "" for row in rows}


def _check_state(adb: Adb, state: str) -> None:
    if state == "device":
        return
    words = {"unauthorized": "device unauthorized", "offline": "device offline"}
    text = words.get(state, state)
    raise adb.complaint(Answer(1, "", text), "adb devices")
