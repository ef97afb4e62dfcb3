"""An `adb` that tests put on PATH: it says what the real one says, about a device that is a folder.

It is a shell script, for it is started many times in a test. Shell commands run in a real shell,
with the device's own commands before the others on PATH and its paths replaced by the folder's.
What goes wrong is said by files that `install` writes:

devices      serials and states
room         bytes that still fit on the device's disk
pushes       files that are pushed until the cable is pulled
disconnects  the cable is pulled when a tool runs, or the log is asked for
refuses_app  no app can be installed
qemu         a command that runs programs of the device's CPU
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WORD_END, CALL_END = "\x01", "\x02"

ADB = r"""
for word in "$@"; do printf '%s\001' "$word"; done >> HOME/calls
printf '\002' >> HOME/calls
serial=
[ "$1" = -s ] && { serial=$2; shift 2; }
verb=$1; shift
fail() { echo "$*" >&2; exit 1; }
unplug() { : > HOME/devices; }

if [ "$verb" = devices ]; then
  echo 'List of devices attached'; cat HOME/devices; echo; exit 0
fi
tab=$(printf '\t')
if [ -n "$serial" ]; then
  before='error: '
  [ "$verb" = push ] && before='adb: error: failed to get feature set: '
  row=$(grep "^$serial$tab" HOME/devices) || fail "${before}device '$serial' not found"
else
  row=$(cat HOME/devices)
  [ -n "$row" ] || fail 'error: no devices/emulators found'
  [ "$(wc -l < HOME/devices)" -lt 2 ] || fail 'error: more than one device/emulator'
fi
case $row in
  *unauthorized) fail "error: device unauthorized.
This adb server's \$ADB_VENDOR_KEYS is not set
Try 'adb kill-server' if that seems wrong.
Otherwise check for a confirmation dialog on your device." ;;
  *offline) fail 'error: device offline' ;;
esac

push_one() {
  place=HOME$2
  [ -d "$place" ] && place=${place%/}/${1##*/}
  if [ -f HOME/room ]; then
    room=$(cat HOME/room); size=$(wc -c < "$1")
    if [ "$size" -gt "$room" ]; then
      head -c "$room" "$1" > "$place"
      fail "adb: error: failed to copy '$1' to '$2': remote write failed: No space left on device"
    fi
    echo $((room - size)) > HOME/room
  fi
  cat "$1" > "$place"
  if [ -f HOME/qemu ] && [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]; then
    mv "$place" "$place.elf"; chmod 755 "$place.elf"
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$(cat HOME/qemu)" "$place.elf" > "$place"
  fi
  [ -f HOME/pushes ] || return 0
  left=$(($(cat HOME/pushes) - 1)); echo $left > HOME/pushes
  if [ $left -eq 0 ]; then
    head -c 1 "$1" > "$place"
    unplug; fail "adb: error: failed to copy '$1' to '$2': device disconnected"
  fi
}

case $verb in
push)
  for target in "$@"; do :; done
  count=0
  while [ $# -gt 1 ]; do push_one "$1" "$target"; count=$((count + 1)); shift; done
  echo "$count files pushed, 0 skipped. 30.0 MB/s (100 bytes in 0.001s)" ;;
pull)
  cp "HOME$1" "$2"; echo "$1: 1 file pulled, 0 skipped." ;;
shell|exec-out)
  case "$*" in "am start"*) ;;
  *--graph=*|*--model_file=*)
    if [ -f HOME/disconnects ]; then
      echo 'INFO: STARTING!'; echo 'INFO: Log parameter values verbosely: [0]'
      unplug; exit 255
    fi ;;
  esac
  export PATH=HOME/bin:/usr/bin:/bin
  exec sh -c "$(printf '%s' "$*" | sed 's#/data/#HOME/data/#g')" ;;
install)
  echo 'Performing Streamed Install'
  [ -f HOME/refuses_app ] && fail 'adb: failed to install app.apk: Failure' \
    '[INSTALL_FAILED_NO_MATCHING_ABIS: Failed to extract native libraries, res=-113]'
  echo package:org.tensorflow.lite.benchmark > HOME/packages; echo Success ;;
uninstall)
  rm HOME/packages; echo Success ;;
logcat)
  [ -f HOME/disconnects ] && { unplug; fail "error: device 'PHONE1' not found"; }
  echo '--------- beginning of main'
  if [ -f HOME/slow ]; then  # the end of the log comes at the second look only
    rm HOME/slow; head -n $(($(wc -l < HOME/logcat) / 2)) HOME/logcat
  else
    cat HOME/logcat 2>/dev/null
  fi
  exit 0 ;;
esac
"""

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
rm -f HOME/recorder
# Its parent waits for it, so that it is gone as soon as it ends.
( ( trap 'cp HOME/recorded "$6"; exit 0' TERM; while :; do sleep 0.02; done ) &
  echo $! > HOME/recorder; wait ) > /dev/null 2>&1 < /dev/null &
while [ ! -s HOME/recorder ]; do sleep 0.01; done
cat HOME/recorder""",
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
        _write(folder / "bin" / name, text, folder)
    _write(folder / "adb", ADB, folder)
    devices = scenario.pop("devices", {"PHONE1": "device"})
    assert isinstance(devices, Mapping)
    (folder / "devices").write_text("".join(f"{n}\t{state}\n" for n, state in devices.items()))
    for name, value in scenario.items():
        (folder / name).write_text(f"{value}\n")
    return folder / "data" / "local" / "tmp"


def _write(path: Path, text: str, home: Path) -> None:
    path.write_text(f"#!/bin/sh\n{text.replace('HOME', str(home))}\n")
    path.chmod(0o755)


def calls(folder: Path) -> list[list[str]]:
    """The words of each call."""
    text = (folder / "calls").read_text()
    return [call.split(WORD_END)[:-1] for call in text.split(CALL_END)[:-1]]
