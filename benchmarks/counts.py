"""Instructions and modelled cycles of one inference: figures that no load on the machine changes.

    python -m benchmarks.counts [MODEL.tflite ...] [--models WORDS] [--target avx2] [--cpu znver3]
                                [--against REVISION | --beside TARGET] [--kernels [NAME...]]
                                [--llvm 19] [--write SECTION]

A model becomes a C program of one thread (`sanderling build`), which callgrind runs (generic and
avx2; it knows no AVX512), or qemu-user with a log of the blocks that it executes (neon, neondot,
i8mm).
Both tell how often each instruction ran; what two runs have more than one is an inference.
Stretches of instructions that ran equally often are given to llvm-mca: modelled cycles are what it
takes a turn of each, as if nothing overlapped with the next stretch and all memory were the first
cache. --against counts the same of another revision, --beside of another target, as the old one.
--kernels takes layers of benchmarks.kernels instead of models. Needs gcc, llvm (llvm-mca,
llvm-objdump; newer ones, chosen by --llvm, model newer cores), and valgrind or qemu-user with
gcc-aarch64-linux-gnu.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import model_paths, table, write_section
from benchmarks.revisions import check_out
from sanderling.delegates.cpu.isa.targets import find
from sanderling.errors import SanderlingError
from sanderling.format import dump, load
from sanderling.measure.machine import machine_line
from sanderling.ops import cost

PROGRAM = r"""
#include <stdlib.h>
#include "m.h"
int main(int argc, char **argv) {
  sanderling_buffer inputs[M_INPUTS + 1], outputs[M_OUTPUTS + 1];
  sanderling_options options = {1};
  m_instance *instance;
  unsigned seed = 1;
  if (argc < 2 || m_create(&options, &instance)) return 1;
  for (size_t i = 0; i < M_INPUTS; i++) {
    inputs[i].bytes = m_input(i)->bytes;
    unsigned char *data = inputs[i].data = malloc(inputs[i].bytes + 1);
    for (size_t j = 0; j < inputs[i].bytes; j++)
      data[j] = m_input(i)->element_bytes == 1 ? (seed = seed * 1664525u + 1013904223u) >> 24 : 0;
  }
  for (size_t i = 0; i < M_OUTPUTS; i++) {
    outputs[i].bytes = m_output(i)->bytes;
    outputs[i].data = malloc(outputs[i].bytes + 1);
  }
  for (int run = atoi(argv[1]); run; run--)
    if (m_run(instance, inputs, M_INPUTS, outputs, M_OUTPUTS)) return 1;
  return 0;
}
"""
# The compiler, and the model of a core.
ARM, X86 = ("aarch64-linux-gnu-gcc", "cortex-a57"), ("gcc", "znver3")
COVERED = 0.98  # of the instructions: the stretches that are modelled; the rest at their rate
TURNS = 50  # of a stretch in llvm-mca: long enough to be steady

Counts = Counter[int]  # how often the instruction at an address ran


class CountError(SanderlingError):
    """A model could not be counted; the message is the sentence for the table."""


@dataclass(frozen=True)
class Counted:
    """Of one inference."""

    instructions: int
    cycles: float


# -- the program --------------------------------------------------------------------------------


def build(place: Path | None, model: Path, target: str, folder: Path) -> Path:
    """The model as a program that makes so many inferences as its argument says."""
    env = os.environ | ({"PYTHONPATH": str(place)} if place else {})
    command = [sys.executable, "-m", "sanderling", "build", str(model), "-o", str(folder)]
    _run([*command, "--name", "m", "--target", target, "--cc", "none", "-q"], env=env, cwd=folder)
    (folder / "main.c").write_text(PROGRAM)
    flags = ["-O1", "-static", "-no-pie", "-o", "program", "main.c", "libm.a", "-pthread", "-lm"]
    _run([tools(target)[0], *flags], cwd=folder)
    return folder / "program"


def tools(target: str) -> tuple[str, str]:
    """The compiler, and llvm-mca's core."""
    return ARM if is_arm(target) else X86


def is_arm(target: str) -> bool:
    return find(target).triple.startswith("aarch64")


def _run(
    command: Sequence[str], cwd: Path, env: dict[str, str] | None = None, given: str | None = None
) -> str:
    if shutil.which(command[0]) is None:
        raise CountError(f"{command[0]} is not installed; `--help` says what is needed")
    done = subprocess.run(
        command, cwd=cwd, env=env, input=given, capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        raise CountError((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])
    return done.stdout


# -- how often each instruction ran -------------------------------------------------------------


def counts(program: Path, target: str) -> Counts:
    """Of one inference: what two have more than one."""
    look = by_qemu if is_arm(target) else by_callgrind
    twice, once = look(program, 2), look(program, 1)
    return +Counter({at: count - once[at] for at, count in twice.items()})


def by_callgrind(program: Path, runs: int) -> Counts:
    kept = program.with_name("counts.out")
    options = ["--tool=callgrind", "--dump-instr=yes", f"--callgrind-out-file={kept}"]
    _run(["valgrind", "-q", *options, str(program), str(runs)], cwd=program.parent)
    found: Counts = Counter()
    at, skip = 0, False
    for line in kept.read_text("utf-8").splitlines():
        if line.startswith("calls="):
            skip = True  # the next line has the cost of all that was called
        elif match := re.match(r"(0x[0-9a-f]+|\+\d+|-\d+|\*) \S+ ?(\d*)$", line):
            at = _address(match[1], at)
            if not skip and match[2]:
                found[at] += int(match[2])
            skip = False
    return found


def _address(text: str, before: int) -> int:
    """Callgrind writes an address, or the way from the one before."""
    if text == "*":
        return before
    return before + int(text) if text[0] in "+-" else int(text, 16)


def by_qemu(program: Path, runs: int) -> Counts:
    log = program.with_name("qemu.log")
    options = ["-cpu", "max", "-d", "exec,nochain,in_asm", "-D", str(log)]
    _run(["qemu-aarch64", *options, str(program), str(runs)], cwd=program.parent)
    blocks: dict[int, list[int]] = {}
    runs_of: Counts = Counter()
    block: list[int] = []
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("Trace"):
                runs_of[int(line.split("/")[1], 16)] += 1
            elif line.startswith("IN:"):
                block = []
            elif match := re.match(r"(0x[0-9a-f]+):", line):
                block.append(int(match[1], 16))
                blocks[block[0]] = block
    log.unlink()
    found: Counts = Counter()
    for start, times in runs_of.items():
        for at in blocks.get(start, ()):
            found[at] += times
    return found


# -- modelled cycles ----------------------------------------------------------------------------


def instructions(program: Path, llvm: str) -> dict[int, str]:
    """The program's instructions as llvm-mca reads them, by address."""
    command = [f"llvm-objdump{llvm}", "-d", "--mattr=+all", "--no-show-raw-insn"]
    text = _run([*command, program.name], cwd=program.parent)
    found = re.findall(r"^ *([0-9a-f]+): +\t?(\S.*)$", text, re.MULTILINE)
    return {int(at, 16): re.sub(r"<.*?>", "", code).strip() for at, code in found}


def stretches(counted: Counts, code: dict[int, str]) -> Iterator[tuple[int, list[str]]]:
    """(times, instructions): neighbours that ran equally often."""
    times, block = 0, list[str]()
    for at, text in code.items():
        if counted[at] != times or (block and _jumps(block[-1])):
            if times and block:
                yield times, block
            times, block = counted[at], []
        block.append(text)
    if times and block:
        yield times, block


def _jumps(text: str) -> bool:
    """Whether control may leave behind this instruction."""
    return bool(re.match(r"j|ret|call|b\b|b\.|bl|br\b|cbn?z|tbn?z", text))


def modelled(counted: Counts, code: dict[int, str], target: str, cpu: str, llvm: str) -> float:
    """Cycles of all stretches; the least frequent ones at the rate of the others."""
    parts = sorted(stretches(counted, code), key=lambda p: -p[0] * len(p[1]))
    total = sum(times * len(block) for times, block in parts)
    chosen, done = list[tuple[int, list[str]]](), 0
    for part in parts:
        if done >= COVERED * total:
            break
        chosen.append(part)
        done += part[0] * len(part[1])
    cycles = sum(times * _mca(block, target, cpu, llvm) for times, block in chosen)
    return cycles * total / max(done, 1)


def _mca(block: Sequence[str], target: str, cpu: str, llvm: str) -> float:
    """Cycles of a turn of the block, jumps left out: their places are unknown to it."""
    arm = is_arm(target)
    options = [f"-mtriple={'aarch64' if arm else 'x86_64'}", f"-mcpu={cpu}"]
    options += ["-mattr=+dotprod,+i8mm"] * arm  # models of older cores lack its name
    options += [f"-iterations={TURNS}", "-all-views=false", "-summary-view"]
    text = "\n".join(x for x in block if not _jumps(x)) + "\nnop\n"
    with tempfile.TemporaryDirectory() as folder:
        said = _run([f"llvm-mca{llvm}", *options], Path(folder), given=text)
    found = re.search(r"^Total Cycles: +(\d+)", said, re.MULTILINE)
    return int(found[1]) / TURNS if found else 0.0


# -- command line -------------------------------------------------------------------------------


def count(place: Path | None, model: Path, target: str, cpu: str = "", llvm: str = "") -> Counted:
    """place: where another revision's package lies."""
    llvm = f"-{llvm}" if llvm else ""
    with tempfile.TemporaryDirectory() as folder:
        program = build(place, model, target, Path(folder))
        counted = counts(program, target)
        code = instructions(program, llvm)
        cycles = modelled(counted, code, target, cpu or tools(target)[1], llvm)
    return Counted(sum(counted.values()), cycles)


def rows_of(
    models: Sequence[Path], ways: Sequence[tuple[Path | None, str]], cpu: str, llvm: str
) -> Iterator[list[str]]:
    """A row for each model: of both ways (a revision's place, a target), and new / old."""
    for model in models:
        try:
            found = [count(place, model, target, cpu, llvm) for place, target in ways]
        except CountError as error:
            yield [model.stem, str(error)]
            continue
        macs = sum(cost(op).macs for op in load(model).main.ops)
        cells = [f"{macs / found[-1].instructions:.1f}", f"{macs / found[-1].cycles:.1f}"]
        cells += [f"{c.instructions / 1e6:.3f}" for c in found]
        cells += [f"{c.cycles / 1e6:.3f}" for c in found]
        if len(found) == 2:
            old, new = found
            cells += [
                f"{new.instructions / old.instructions:.3f}",
                f"{new.cycles / old.cycles:.3f}",
            ]
        yield [model.stem, *cells]


def header(against: str) -> list[str]:
    """Of the table. Multiply-adds are the model's own, whichever way they are done."""
    first = ["model", "MACs an instruction", "MACs a cycle"]
    whats = ["million instructions", "million cycles"]
    if not against:
        return [*first, *whats]
    ratios = ["instructions new / old", "cycles new / old"]
    return [*first, *(f"{what}, {which}" for what in whats for which in ("old", "new")), *ratios]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ways: list[tuple[Path | None, str]] = [(None, options.target)]
        if options.against:
            ways.insert(0, (check_out(options.against, Path(folder, "old")), options.target))
        elif options.beside:
            ways.insert(0, (None, options.beside))
        models = model_paths(options.paths, options.models)
        if options.kernels is not None:
            models = layers(options.kernels, Path(folder))
        found = []
        for row in rows_of(models, ways, options.cpu, options.llvm):
            print(" | ".join(row), file=sys.stderr, flush=True)
            found.append(row)
    old = options.against or options.beside
    text = table(header(old), found)
    print(text)
    if options.write:
        cpu = options.cpu or tools(options.target)[1]
        about = f"Target {options.target}, llvm-mca's {cpu}"
        about += f"; old: {old}." if old else "."
        title = options.write[0].upper() + options.write[1:]
        write_section(options.write, f"## {title}\n\n{machine_line()}\n\n{about}\n\n{text}")
    return 0


def layers(names: Sequence[str], folder: Path) -> list[Path]:
    """Models of one layer each."""
    from benchmarks.kernels import ROWS

    made = []
    for row in ROWS:
        if not names or any(n in row.name for n in names):
            made.append(folder / f"{row.name}.tflite")
            made[-1].write_bytes(dump(row.model()))
    return made


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: the shared models")
    parser.add_argument("--models", default="", help="only names with one of these words")
    parser.add_argument("--kernels", nargs="*", metavar="NAME", help="layers in place of models")
    parser.add_argument("--target", default="avx2", help="generic, avx2, neon, neondot, i8mm")
    parser.add_argument("--beside", default="", metavar="TARGET", help="count that one too")
    parser.add_argument("--llvm", default="", help="the version of LLVM's tools, such as 19")
    parser.add_argument("--cpu", default="", help="the core that llvm-mca models")
    parser.add_argument("--against", default="", metavar="REVISION", help="count that one too")
    parser.add_argument("--write", metavar="SECTION", help="a section of benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
