"""A trace of TensorFlow Lite on an Android device: what the guide tells a person to do by hand.

The property debug.tflite.trace is set, the device's `perfetto` records, the benchmark or the user's
app runs, the file is fetched, and the property is what it was, whatever happens: a shell on the
device sets the property, starts the recorder, waits for the end of its input and then undoes
everything. That end comes when we are done, and also when this process is killed, adb dies or the
cable is pulled.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ..record import Setting
from . import tool_log
from .adb import Adb, Answer, DeviceError, choose
from .android_tools import (
    BENCHMARK,
    TEMP,
    clearing,
    device_facts,
    how_it_ended,
    place_tool,
    run_tool,
    safe,
)
from .device_options import DeviceOptions, as_words, flags_for, local_file

PROPERTY = "debug.tflite.trace"
TRACES = "/data/misc/perfetto-traces"  # the only folder that the device's perfetto may write to
BEGINNING = 1.0  # seconds until all that is recorded is recorded
ENDING = 20.0  # seconds that perfetto may take to write its file
POLL = 0.2
READY = "sanderling-ready"
STARTED = "sanderling-started"  # with perfetto's status; what it said stands before
STEPS = 4
# Sections of apps, who has a core and who waits for one, names of processes, number of cores.
CONFIG = """\
buffers {{ size_kb: 65536 fill_policy: RING_BUFFER }}
data_sources {{ config {{
  name: "linux.ftrace"
  ftrace_config {{
    ftrace_events: "ftrace/print"
    ftrace_events: "sched/sched_switch"
    ftrace_events: "sched/sched_waking"
    atrace_apps: "*"
  }}
}} }}
data_sources {{ config {{
  name: "linux.process_stats"
  process_stats_config {{ scan_all_processes_on_start: true }}
}} }}
data_sources {{ config {{ name: "linux.system_info" }} }}
duration_ms: {milliseconds}
"""


@dataclass(frozen=True)
class TracedWork:
    """What runs while the device records: the benchmark on a model, or an app (PACKAGE/ACTIVITY)
    for some seconds; with neither, whatever the user does on the device in this time."""

    model: str = ""
    app: str = ""
    seconds: float = 10.0
    runs: int = 5


def trace_android(serial: str, work: TracedWork, setting: Setting, options: DeviceOptions) -> bytes:
    """Perfetto's file. What the device cannot do is raised as DeviceError, what the user can mend
    as InputError; the device is left as it was in either case."""
    source = local_file(work.model, "model", "model") if work.model else None
    if options.binary:
        local_file(options.binary, "--device-binary", "file")
    flags = {"num_runs": str(work.runs)} | flags_for(setting, options)
    adb = choose(Adb(options.adb, serial))
    facts = device_facts(adb)
    if adb.shell("command -v perfetto").status:
        raise InputError(
            f"the device has no perfetto: it runs Android {facts['android']}, and 9 is needed",
            where=adb.name,
            fix="capture with systrace, and give its file to --read",
        )
    name = f"sanderling-{uuid.uuid4().hex[:12]}"
    folder, file = f"{TEMP}/{name}", f"{TRACES}/{name}.perfetto-trace"
    limit = options.timeout if source is not None else work.seconds
    with _watched(adb, _script(folder, file, limit)) as watch:
        words = []
        if source is not None:
            options.progress("push the model", 1, STEPS)
            graph = f"{folder}/{safe(source.name)}"
            adb.push(source, graph)
            tool = place_tool(adb, BENCHMARK, options, folder, facts)
            words = [tool, *as_words({"graph": graph, **flags})]
        recorder = watch.start()
        options.progress("record", 2, STEPS)
        _run(adb, words, work, options)
        options.progress("fetch", 3, STEPS)
        return _stop(adb, recorder, file)


# -- the watch ------------------------------------------------------------------------------------


class Watch:
    """The shell on the device that undoes everything when its input ends."""

    def __init__(self, adb: Adb, line: str) -> None:
        self.adb = adb
        self.process = subprocess.Popen(
            adb.words("shell", line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def wait_until_ready(self) -> None:
        said, status = self._read_until(READY)
        if status is None:
            answer = Answer(self.process.wait(), "", said)
            raise self.adb.complaint(answer, f"setprop {PROPERTY} 1")

    def start(self) -> int:
        """Perfetto in the background, by its process id."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(b"start\n")
            self.process.stdin.flush()
        said, status = self._read_until(STARTED)
        number = said.strip().rpartition("\n")[2].strip()
        if status != "0" or not number.isdecimal():
            raise _refused(self.adb, said)
        time.sleep(BEGINNING)
        return int(number)

    def _read_until(self, mark: str) -> tuple[str, str | None]:
        """What it says before a line with the mark, and what stands behind the mark; None if it
        ends, or takes too long, before that."""
        assert self.process.stdout is not None
        ended = threading.Timer(self.adb.timeout, self.process.kill)
        ended.start()
        said = ""
        try:
            for line in self.process.stdout:
                text = line.decode("utf-8", "replace")
                if text.startswith(mark):
                    return said, text.removeprefix(mark).strip()
                said += text
        finally:
            ended.cancel()
        return said, None

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(self.adb.timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def _watched(adb: Adb, script: str) -> Iterator[Watch]:
    watch = Watch(adb, script)
    try:
        watch.wait_until_ready()
        yield watch
    finally:
        watch.end()


def _script(folder: str, file: str, seconds: float) -> str:
    """The recorder's own limit ends it if nobody else does."""
    config = CONFIG.format(milliseconds=round(1e3 * (BEGINNING + seconds + ENDING)))
    # The recorder is given some seconds: what it writes at its end must not be left behind.
    undo = (
        f'setprop {PROPERTY} "${{old:-0}}"; '
        '[ -n "$recorder" ] && kill $recorder; n=0; '
        'while [ -n "$recorder" ] && kill -0 $recorder && [ $n -lt 100 ]; '
        "do sleep 0.05; n=$((n + 1)); done; "
        f"rm -f {file}; {clearing(folder)}"
    )
    return "; ".join(
        [
            f"old=$(getprop {PROPERTY})",
            "recorder=",
            f"trap {shlex.quote(f'{{ {undo}; }} > /dev/null 2>&1')} EXIT",
            "trap 'exit 1' HUP INT TERM PIPE",
            f"mkdir -p {folder} && chmod 755 {folder} && setprop {PROPERTY} 1 || exit 1",
            f"echo {READY}",
            "read start || exit 0",
            f"said=$(printf %s {shlex.quote(config)} | "
            f"perfetto --background --txt -c - -o {file} 2>&1)",
            "status=$?",
            'recorder=$(echo "$said" | tail -n 1)',
            'case "$recorder" in *[!0-9]*) recorder= ;; esac',
            'echo "$said"',
            f'echo "{STARTED} $status"',
            "cat > /dev/null",
        ]
    )


# -- recording ------------------------------------------------------------------------------------


def _refused(adb: Adb, said: str) -> DeviceError:
    words = " ".join(said.split())[-200:]
    return DeviceError(
        f"perfetto recorded nothing{f': {words}' if words else ''}",
        where=adb.name,
        fix="on Android 9 and 10 switch its service on once: adb shell setprop "
        "persist.traced.enable 1",
    )


def _run(adb: Adb, words: list[str], work: TracedWork, options: DeviceOptions) -> None:
    if words:
        answer = run_tool(adb, words[0], words[1:], options)
        if answer.status:
            log = tool_log.parse(answer.out)
            log.errors.append(how_it_ended(answer.status))
            raise DeviceError(tool_log.problem(log), where=adb.name, fix="check the flags")
        return
    if work.app:
        started = adb.shell(f"am start -S -n {shlex.quote(work.app)}")
        if started.status or "Error" in started.text:
            raise InputError(
                f"the app does not start: {' '.join(started.text.split())[-200:]}",
                where="--app",
                fix="write PACKAGE/ACTIVITY: adb shell cmd package resolve-activity --brief "
                f"{Path(work.app).parts[0]}",
            )
    time.sleep(work.seconds)


def _stop(adb: Adb, recorder: int, file: str) -> bytes:
    adb.shell(f"kill -TERM {recorder}")
    end = time.monotonic() + ENDING
    while adb.shell(f"kill -0 {recorder}").status == 0:
        if time.monotonic() > end:
            raise DeviceError(
                f"perfetto does not end within {ENDING:g} s", where=adb.name, fix="try again"
            )
        time.sleep(POLL)
    content = adb.content(file)
    if not content:
        raise _refused(adb, "")
    return content
