"""Benchmarks on a board that is reached by ssh: push, run, read the log, leave nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ...errors import InputError, one_line
from ..record import Result, Setting
from . import tool_log
from .adb import Adb, Complaint, DeviceError, DeviceLostError
from .android import check_mask
from .android_tools import device_folder, safe
from .device_binary import STEPS, push_inputs, run_binary
from .device_options import ENGINE, OURS, DeviceOptions, as_words, flags_for, is_ours, local_file
from .own_program import run_own

HOME = "/tmp"
# It asks nothing: nobody is there to answer.
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
COMPLAINTS = (
    Complaint(r"Could not resolve hostname ([^:\s]+)", "there is no host '{0}'",
              "check the name: ssh HOST must work"),
    Complaint(r"Permission denied \(|Host key verification failed|Too many authentication",
              "the host does not let this computer in",
              "make 'ssh HOST' work without a question: ssh-copy-id HOST"),
    Complaint(r"Connection refused|No route to host|Network is unreachable|Connection timed out",
              "the host does not answer", "check that it is on, and runs an ssh server"),
    Complaint(r"Connection (?:reset|closed)|Broken pipe|lost connection",
              "the connection was lost", "try again", DeviceLostError),
    Complaint(r"No space left on device", "the host's disk is full", f"make room in {HOME}",
              DeviceError),
    Complaint(r"Permission denied", "the host refuses: permission denied",
              f"files must be written and run in {HOME}", DeviceError),
)  # fmt: skip


@dataclass
class Ssh(Adb):
    """A host, with the words of adb: `serial` is its name, as ssh takes it."""

    command: str = "ssh"
    complaints: ClassVar[tuple[Complaint, ...]] = COMPLAINTS

    def __post_init__(self) -> None:
        import shutil

        found = shutil.which(self.command)
        if found is None or shutil.which("scp") is None:
            raise InputError(
                "the commands 'ssh' and 'scp' are not there",
                where=self.name,
                fix="install them (Debian: apt-get install openssh-client)",
            )
        self.path = found

    @property
    def name(self) -> str:
        return f"ssh:{self.serial}"

    def words(self, *words: str) -> list[str]:
        verb, *rest = words
        if verb == "push":
            return ["scp", "-q", *_OPTIONS, *rest[:-1], f"{self.serial}:{rest[-1]}"]
        if verb == "pull":
            return ["scp", "-q", *_OPTIONS, f"{self.serial}:{rest[0]}", rest[1]]
        return [self.path, *_OPTIONS, self.serial, *rest]


def run_board(host: str, model: str, setting: Setting, options: DeviceOptions) -> Result:
    """A model on a board: our own program, or TensorFlow Lite's tool as built for it."""
    source = local_file(model, "model", "model")
    check_mask(options)
    remote = Ssh(serial=host)
    setting = replace(setting, device=remote.name)
    try:
        facts = board_facts(remote)
        if is_ours(setting, options):
            kind = f"linux {facts['machine']}"
            return run_own(remote, kind, HOME, facts, model, setting, options)
        setting = replace(setting, engine=ENGINE)
        if not options.binary:
            raise InputError(
                "no benchmark_model was given",
                where=remote.name,
                fix="give the tool as built for this board with --device-binary, or measure "
                f"ours alone: --engines {OURS}",
            )
        tool = local_file(options.binary, "--device-binary", "file")
        flags = flags_for(setting, options)
        with device_folder(remote, HOME) as folder:
            options.progress("push the model", 1, STEPS)
            graph, place = f"{folder}/{safe(source.name)}", f"{folder}/benchmark_model"
            remote.push(source, graph)
            remote.push(tool, place)
            remote.insist(f"chmod 755 {place}", "chmod")
            words = as_words({"graph": graph, **push_inputs(remote, folder, flags)})
            text = run_binary(remote, place, words, options)
    except DeviceError as error:
        return Result(str(model), setting, error=one_line(error))
    options.progress("done", STEPS, STEPS)
    found = tool_log.result(tool_log.parse(text), str(model), setting)
    found.facts |= {"device": facts}
    return found


def board_facts(remote: Ssh) -> dict[str, str]:
    lines = remote.insist("uname -m; uname -sr; hostname", "uname").splitlines()
    machine, system, name = [line.strip() for line in [*lines, "", "", ""][:3]]
    return {"host": remote.serial, "name": name, "machine": machine, "system": system}
