"""Programs in pieces: each is compiled once and kept; the image is the same whoever made it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sanderling import store
from sanderling.delegates.cpu.codegen import compiling
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime import cache
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.errors import CacheWarning, FallbackWarning
from sanderling.ir import Array, Model
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack

Texts = list[str]
TILES = re.compile(r'define \w+ void @"(gemm[^"]*)"')


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    # The package is not edited while a test runs, or it does not matter.
    known = store._compiler()
    monkeypatch.setattr(store, "_who", lambda: known)
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Texts:
    """The texts that are given to LLVM from now on."""
    texts: Texts = []
    real: Callable[..., bytes] = compiling.compile_object

    def noted(text: str, *more: object) -> bytes:
        texts.append(text)
        return real(text, *more)

    monkeypatch.setattr(compiling, "compile_object", noted)
    return texts


def large(layers: int = 3, seed: int = 0) -> Model:
    """Its steps are large enough for their tiles to be pieces."""
    return stack(size=28, channels=64, layers=layers, seed=seed)


def session(model: Model, threads: int = 1) -> Session:
    return model.compile([CpuDelegate()], threads=threads)


def code(made: Session) -> bytes:
    executable = made.plan().steps[0].executable
    assert isinstance(executable, CpuExecutable)
    return bytes(executable.compiled.image.code)


def forget(folder: Path) -> None:
    """As a new process would start, with the pieces of programs and without the programs."""
    cache._loaded.clear()
    for path in folder.glob("*.part"):
        path.unlink()


def answer(model: Model, x: Array) -> Array:
    found: Array = model.compile(["reference"])(x)
    return found


def test_another_batch_has_the_tiles(folder: Path, compiled: Texts) -> None:
    model = large()
    session(model).plan()
    assert any(map(TILES.search, compiled))
    compiled.clear()
    x = np.concatenate([feed(model, seed) for seed in range(3)])
    np.testing.assert_array_equal(session(model)(x), answer(model, x))
    assert compiled and not any(map(TILES.search, compiled))


def test_another_model_has_the_tiles(compiled: Texts) -> None:
    session(large()).plan()
    before = len(compiled)
    compiled.clear()
    other = large(layers=5, seed=1)
    x = feed(other)
    np.testing.assert_array_equal(session(other)(x), answer(other, x))
    assert 0 < len(compiled) < before and not any(map(TILES.search, compiled))


def test_a_small_step_has_its_tile_with_it(compiled: Texts) -> None:
    session(stack(size=4, channels=16, layers=1)).plan()
    (tile,) = (text for text in compiled if TILES.search(text))
    assert 'define void @"body0"(' in tile


def test_another_number_of_threads_compiles_nothing(folder: Path, compiled: Texts) -> None:
    first = code(session(large()))
    compiled.clear()
    cache._loaded.clear()
    assert code(session(large(), threads=2)) == first and not compiled


@pytest.mark.parametrize("quantised", [True, False])
def test_an_image_of_kept_pieces_is_the_same(
    folder: Path, compiled: Texts, quantised: bool
) -> None:
    model = stack(quantised, size=28, channels=64)
    first = code(session(model))
    compiled.clear()
    forget(folder)
    assert code(session(model)) == first and not compiled


def test_an_image_is_the_same_however_many_threads_compile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", "off")
    images = set()
    for threads in (1, 2, 7):
        monkeypatch.setattr(compiling, "usable_cpu_count", lambda n=threads: n)
        images.add(code(session(large())))
    assert len(images) == 1


def test_threads_of_python_take_turns_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind an error."""
    before = sys.getswitchinterval()
    seen: list[float] = []

    def fail(*_: object) -> bytes:
        seen.append(sys.getswitchinterval())
        raise RuntimeError("LLVM is tired")

    monkeypatch.setattr(compiling, "compile_object", fail)
    with pytest.warns(FallbackWarning, match="LLVM is tired"):
        session(large()).plan()
    assert seen and max(seen) < before == sys.getswitchinterval()


def test_a_forked_child_takes_turns_as_before() -> None:
    """Whoever compiled while it was forked is not there to put the interval back."""
    before = sys.getswitchinterval()
    compiling._interpreter.begin()
    assert sys.getswitchinterval() < before
    compiling._interpreter.renew_lock()
    assert sys.getswitchinterval() == before
    compiling._interpreter.end()
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("spoil", ["flip", "cut", "empty", "exchange"])
def test_damaged_pieces_are_made_anew(folder: Path, compiled: Texts, spoil: str) -> None:
    first = code(session(large()))
    paths = sorted(folder.glob("*.piece"))
    raws = [path.read_bytes() for path in paths]
    for path, raw, other in zip(paths, raws, [*raws[1:], raws[0]], strict=True):
        flipped = raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:]
        spoilt = {"flip": flipped, "cut": raw[:40], "empty": b"", "exchange": other}
        path.write_bytes(spoilt[spoil])
    compiled.clear()
    forget(folder)
    with pytest.warns(CacheWarning, match="made anew"):
        assert code(session(large())) == first
    assert len(compiled) == len(paths)
    assert [path.read_bytes() for path in paths] == raws


def test_pieces_are_private_and_count_for_the_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(large()).plan()
    pieces = list(folder.glob("*.piece"))
    assert pieces and all(p.stat().st_mode & 0o777 == 0o600 for p in pieces)
    for path in pieces:
        os.utime(path, ns=(0, 0))
    room = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setenv("SANDERLING_CACHE_SIZE", str(room))
    session(stack(size=4, channels=16, layers=1)).plan()
    assert not all(map(Path.exists, pieces))  # they were not used for longest, and made room


def test_what_a_killed_writer_left_is_no_entry(folder: Path, compiled: Texts) -> None:
    first = code(session(large()))
    for path in folder.glob("*.piece"):
        raw = path.read_bytes()
        path.rename(folder / f".new-{path.stem[:16]}")
        (folder / f".new-{path.stem[:16]}").write_bytes(raw[: len(raw) // 2])
    compiled.clear()
    forget(folder)
    assert code(session(large())) == first and compiled
