"""Versions of the code in one library, chosen by the CPU; AArch64 under qemu-user."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from sanderling.build.blueprint import plan_library
from sanderling.build.checking import check_library
from sanderling.build.library import write_library
from sanderling.build.platforms import PLATFORMS, PROBES, names, platform_of, probes
from sanderling.build.toolchain import find_compiler, no_compiler
from sanderling.delegates.cpu.isa.targets import TARGETS, cpu_features, host_target
from sanderling.errors import InputError
from sanderling.measure.inputs import Feeding
from tests.support.aarch64_qemu import run_aarch64
from tests.support.command_line import F32, INT8
from tests.support.every_worker import share_everything

from ..support.c_programs import CROSS, QEMU, built, compiled, from_python, needs_arm, needs_cc, run

x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="this is no x86-64 machine")


@needs_cc
@x86_only
def test_every_version_in_one_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_everything(monkeypatch)
    made = plan_library(INT8, "x86-64", name="m")
    compiler = find_compiler(made.platform)
    found = write_library(made, tmp_path, compiler)
    assert found.versions == ["avx512vnni", "avx2vnni", "avx2", "generic"]
    checks = check_library(made, tmp_path, compiler, Feeding())
    assert all(c.identical and c.passed for c in checks)
    known = {c.version for c in checks}
    own = next(t.name for t in made.platform.versions if t.needs <= cpu_features())
    with from_python(tmp_path).Model() as model:
        assert model.version == own  # the best of them
    for name in known:
        with from_python(tmp_path).Model(version=name) as model:
            assert model.version == name
    assert "generic" in known


@needs_cc
@x86_only
def test_the_cpu_is_asked_what_the_kernel_reports(tmp_path: Path) -> None:
    """Every probe, one by one, by the bytes that ask."""
    rows = ",\n".join(
        f'{{"{name}", {{{", ".join(map(str, probe))}}}}}'
        for name, probe in PROBES.items()
        if probe[0] != 16
    )
    built(INT8, tmp_path, target="generic")
    source = """
#include <stdint.h>
#include <stdio.h>
extern void m_cpuid(uint32_t leaf, uint32_t sub, uint32_t *r);
extern uint32_t m_xcr0(void);
static const struct { const char *name; int64_t p[5]; } rows[] = {
ROWS};
int main(void) {
  uint32_t r[4];
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
    m_cpuid((uint32_t)rows[i].p[0], (uint32_t)rows[i].p[1], r);
    if (r[rows[i].p[2]] >> rows[i].p[3] & 1)
      if (!rows[i].p[4] || (m_xcr0() & rows[i].p[4]) == rows[i].p[4]) puts(rows[i].name);
  }
  return 0;
}
"""
    source = source.replace("ROWS", rows)
    found = set(run(compiled(tmp_path, source, "m")).split())
    assert found == {name for name in cpu_features() if name in PROBES} - {"neon"}


def test_every_feature_of_every_row_can_be_asked_for() -> None:
    for row in (*TARGETS.values(), host_target()):
        assert all(len(p) == 5 for p in probes(row))


def test_platforms() -> None:
    assert platform_of("x86-64:generic,avx2").versions == (TARGETS["avx2"], TARGETS["generic"])
    assert platform_of("neondot").machine == "aarch64"
    assert {"native", "android-arm64", "avx2"} <= set(names())
    with pytest.raises(InputError, match="no version for aarch64"):
        platform_of("aarch64:avx2")
    assert not PLATFORMS["android-arm64"].is_native


def test_compilers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's, the system's, ziglang, none."""
    arm, phone = PLATFORMS["aarch64"], PLATFORMS["android-arm64"]
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if "aarch64" in name else None)
    found = find_compiler(arm)
    assert found is not None and found.words == ("aarch64-linux-gnu-gcc",) and found.makes_shared
    static = find_compiler(phone)
    assert static is not None and not static.makes_shared  # Android's libc is another
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    zig = find_compiler(arm)
    assert zig is not None and zig.words[1:] == (
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-gnu.2.17",
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_compiler(arm) is None and find_compiler(arm, "none") is None
    assert "NDK" in no_compiler(phone, "x.so") and "ziglang" in no_compiler(arm, "x.so")


@needs_arm
def test_aarch64_is_chosen_by_its_features(tmp_path: Path) -> None:
    """A Cortex-A53 has no dot product, a Neoverse N1 has; qemu's max multiplies matrices, too."""
    built(INT8, tmp_path, target="aarch64")
    program = compiled(
        tmp_path,
        '#include <stdio.h>\n#include "m.h"\nint main(void) { m_instance *i; '
        "if (m_create(NULL, &i)) return 1; puts(m_version(i)); m_destroy(i); return 0; }\n",
        "m",
        ["-static"],
        CROSS,
    )
    assert run(QEMU, "-cpu", "cortex-a53", program) == "neon\n"
    assert run(QEMU, "-cpu", "neoverse-n1", program) == "neondot\n"
    assert run(QEMU, "-cpu", "max", program) == "i8mm\n"


@needs_arm
@pytest.mark.parametrize("path", [F32, INT8], ids=["float", "int8"])
def test_aarch64_answers(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers as the session of this machine has them; floats bit for bit as the same code gives
    without the library around it."""
    share_everything(monkeypatch)
    made = plan_library(path, "aarch64", name="m")
    compiler = find_compiler(made.platform)
    write_library(made, tmp_path, compiler)
    checks = check_library(made, tmp_path, compiler, Feeding())
    assert [(c.version, c.threads) for c in checks] == [
        (version, count) for version in ("i8mm", "neondot", "neon") for count in (1, 2)
    ]
    assert all(c.passed for c in checks) and all(c.identical or path == F32 for c in checks)
    version = made.versions[0]
    (part,) = version.parts
    assert part.compiled is not None
    (tensor,), (result,) = version.inputs, version.outputs
    x = np.random.default_rng(0).integers(-128, 128, tensor.shape).astype(tensor.dtype.numpy)
    wanted = np.zeros(result.shape, result.dtype.numpy)
    run_aarch64(part.compiled, [x], [wanted])
    (tmp_path / "input_0").write_bytes(x.tobytes())
    from sanderling.build.checking import write_program
    from sanderling.build.toolchain import program

    assert compiler is not None
    source = write_program(made, "check.c.in", tmp_path)
    program(compiler, tmp_path / "t", [source, tmp_path / "libm.a"], [f"-I{tmp_path}"], static=True)
    run(QEMU, tmp_path / "t", 1, "i8mm", 1, tmp_path)
    assert (tmp_path / "output_0").read_bytes() == wanted.tobytes()
