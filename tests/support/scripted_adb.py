"""An `adb` that tests put on PATH: it says what the real one says, about a device that is a folder.

Shell commands run in a real shell, with the device's own commands before the others on PATH and its
paths replaced by the folder's. What goes wrong is read from scenario.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent
SCENARIO = HOME / "scenario.json"

# Commands that only a device has. HOME is filled in when they are written.
COMMANDS = {
    "getprop": """case $1 in
  ro.product.model) echo 'Pixel 9' ;;
  ro.product.cpu.abi) echo arm64-v8a ;;
  ro.build.version.release) echo 16 ;;
  *) cat "HOME/property-$1" 2>/dev/null || echo ;;
esac""",
    "setprop": """echo "$1=$2" >> HOME/properties; printf '%s\\n' "$2" > "HOME/property-$1" """,
    # It reads its words and its configuration, and writes the file that a test has made when it is
    # told to end.
    "perfetto": """case "$*" in
  '--background --txt -c - -o '*) ;;
  *) echo "Unknown option: $*" >&2; exit 1 ;;
esac
cat > HOME/config
[ -f HOME/traced_is_off ] && { echo 'Could not connect to the traced socket' >&2; exit 1; }
( trap 'cp HOME/recorded "$6"; exit 0' TERM; while :; do sleep 0.02; done ) \
  > /dev/null 2>&1 < /dev/null &
echo $!""",
    "taskset": 'echo "taskset $1"; shift; exec "$@"',
    "pkill": 'echo "$@" >> HOME/killed',
    "log": 'echo "11-16 02:00:01.000  100  100 I $2: $3" >> HOME/logcat',
    "pidof": "echo 4242",
    "pm": "cat HOME/packages 2>/dev/null; exit 0",
    "am": """case $1 in
  force-stop) echo "$2" >> HOME/stopped ;;
  start) if [ -f HOME/packages ]; then
      echo "Starting: Intent { cmp=$4 }"
      echo "$* trace=$(getprop debug.tflite.trace)" > HOME/started
      [ -f HOME/app_log ] && cat HOME/app_log >> HOME/logcat; exit 0
    else
      echo "Error type 3"; echo "Error: Activity class {$4} does not exist."; exit 1
    fi ;;
esac""",
}


def install(folder: Path, **scenario: object) -> Path:
    """Make the command and its device in a folder; the folder goes on PATH."""
    (folder / "data" / "local" / "tmp").mkdir(parents=True)
    (folder / "data" / "misc" / "perfetto-traces").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name, text in COMMANDS.items():
        _write(folder / "bin" / name, "#!/bin/sh\n" + text.replace("HOME", str(folder)) + "\n")
    code = Path(__file__).read_text().replace("from __future__ import annotations\n", "")
    _write(folder / "adb", f"#!{sys.executable} -SE\n{code}")
    (folder / "scenario.json").write_text(json.dumps({"devices": {"PHONE1": "device"}} | scenario))
    return folder / "data" / "local" / "tmp"


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def fail(text: str, status: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(status)


def main(words: list[str]) -> None:
    scenario = json.loads(SCENARIO.read_text())
    with (HOME / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    serial = words[1] if words[:1] == ["-s"] else ""
    verb, *rest = words[2:] if serial else words
    if verb == "devices":
        print("List of devices attached")
        for name, state in scenario["devices"].items():
            print(f"{name}\t{state}")
        print()
        return
    _check(scenario, serial, verb)
    {
        "push": push,
        "pull": pull,
        "shell": shell,
        "exec-out": shell,
        "install": install_app,
        "uninstall": uninstall,
        "logcat": logcat,
    }[verb](scenario, rest)


def _check(scenario: dict, serial: str, verb: str) -> None:
    devices = scenario["devices"]
    if serial and serial not in devices:
        before = "adb: error: failed to get feature set: " if verb == "push" else "error: "
        fail(f"{before}device '{serial}' not found")
    if not serial and not devices:
        fail("error: no devices/emulators found")
    if not serial and len(devices) > 1:
        fail("error: more than one device/emulator")
    state = devices[serial] if serial else next(iter(devices.values()))
    if state == "unauthorized":
        fail(
            "error: device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set\n"
            "Try 'adb kill-server' if that seems wrong.\n"
            "Otherwise check for a confirmation dialog on your device."
        )
    if state == "offline":
        fail("error: device offline")


def local(path: str) -> Path:
    return HOME / path.lstrip("/")


def push(scenario: dict, words: list[str]) -> None:
    """A file to a place, or several into a folder. full: how many more bytes fit."""
    *sources, target = words
    for source in sources:
        content = Path(source).read_bytes()
        place = local(target)
        place = place / Path(source).name if place.is_dir() else place
        room = scenario.get("room")
        if room is not None and len(content) > room:
            place.write_bytes(content[:room])
            fail(
                f"adb: error: failed to copy '{source}' to '{target}': "
                "remote write failed: No space left on device"
            )
        place.write_bytes(content)
        if room is not None:
            scenario["room"] = room - len(content)
            SCENARIO.write_text(json.dumps(scenario))
        if scenario.get("pushes") == 1:  # the last one before the cable is pulled
            SCENARIO.write_text(json.dumps(scenario | {"devices": {}}))
            fail(f"adb: error: failed to copy '{source}' to '{target}': device disconnected")
        if "pushes" in scenario:
            scenario["pushes"] -= 1
            SCENARIO.write_text(json.dumps(scenario))
    print(f"{len(sources)} files pushed, 0 skipped. 30.0 MB/s (100 bytes in 0.001s)")


def pull(scenario: dict, words: list[str]) -> None:
    source, target = words
    Path(target).write_bytes(local(source).read_bytes())
    print(f"{source}: 1 file pulled, 0 skipped.")


def shell(scenario: dict, words: list[str]) -> None:
    command = " ".join(words)
    runs = "--graph=" in command or "--model_file=" in command
    if runs and scenario.get("disconnects"):
        print("INFO: STARTING!\nINFO: Log parameter values verbosely: [0]", flush=True)
        SCENARIO.write_text(json.dumps(scenario | {"devices": {}}))
        sys.exit(255)
    command = command.replace("/data/", f"{HOME}/data/")
    environment = os.environ | {"PATH": f"{HOME / 'bin'}:/usr/bin:/bin"}
    sys.stdout.flush()
    os.execve("/bin/sh", ["sh", "-c", command], environment)


def install_app(scenario: dict, words: list[str]) -> None:
    print("Performing Streamed Install")
    if scenario.get("refuses_app"):
        fail(
            "adb: failed to install app.apk: Failure [INSTALL_FAILED_NO_MATCHING_ABIS: Failed to "
            "extract native libraries, res=-113]"
        )
    (HOME / "packages").write_text("package:org.tensorflow.lite.benchmark\n")
    print("Success")


def uninstall(scenario: dict, words: list[str]) -> None:
    (HOME / "packages").unlink()
    print("Success")


def logcat(scenario: dict, words: list[str]) -> None:
    if scenario.get("disconnects"):
        SCENARIO.write_text(json.dumps(scenario | {"devices": {}}))
        fail("error: device 'PHONE1' not found")
    path = HOME / "logcat"
    lines = path.read_text().splitlines() if path.exists() else []
    slow = HOME / "slow"  # the end of the log comes at the second look only
    if slow.exists():
        slow.unlink()
        lines = lines[: len(lines) // 2]
    print("--------- beginning of main", *lines, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
