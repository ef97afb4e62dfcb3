"""The cache of compiled code: warm without LLVM, private, bounded, and proof against damage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import load, save, store
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa import targets
from sanderling.delegates.cpu.runtime import cache
from sanderling.delegates.cpu.runtime.cache import Cache, fingerprint
from sanderling.errors import CacheWarning, FallbackWarning
from sanderling.ir import Array, Model
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    # The package is not edited while a test runs, or it does not matter.
    known = store._compiler()
    monkeypatch.setattr(store, "_who", lambda: known)
    return tmp_path / "cache"


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.part"))


def run(model: Model) -> Array:
    answer: Array = session(model)(feed(model))
    return answer


def session(model: Model) -> Session:
    return model.compile([CpuDelegate()])


def forget() -> None:
    """As a new process would start."""
    cache._loaded.clear()


def test_every_folder_of_the_compiler_counts() -> None:
    """Code of an older compiler is not served, wherever in it the edit was."""
    root = ROOT / "sanderling"
    deciding = ("delegates/cpu", "passes", "ops", "ir", "format", "runtime")
    folders = {path.parent for name in deciding for path in (root / name).rglob("*.py")}
    assert {root / name for name in store.SOURCES} == folders | {root, root / "delegates"}


@pytest.mark.parametrize("each_file", [True, False])
def test_an_edit_deep_inside_is_another_compiler(tmp_path: Path, each_file: bool) -> None:
    for name in store.SOURCES:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    module = tmp_path / "delegates" / "cpu" / "kernels" / "products" / "gemm.py"
    module.write_text("old", "utf-8")
    before = store._stamps(str(tmp_path), each_file)
    module.unlink()
    module.write_text("newer", "utf-8")
    assert store._stamps(str(tmp_path), each_file) != before


def test_a_warm_start_needs_no_llvm(tmp_path: Path) -> None:
    """Not for `import sanderling`, not for the partition, not for the code."""
    model = stack()
    save(model, tmp_path / "model.tflite")
    np.save(tmp_path / "x.npy", feed(model))
    code = textwrap.dedent(f"""
        import sys
        import numpy as np
        import sanderling
        from sanderling.delegates.cpu.delegate import CpuDelegate
        assert not any(name.startswith("llvmlite") for name in sys.modules)
        model = sanderling.load({str(tmp_path / "model.tflite")!r})
        session = model.compile([CpuDelegate()])
        answer = session(np.load({str(tmp_path / "x.npy")!r}))
        assert session.plan().partition.parts[0].delegate.name == "cpu"
        names = "llvmlite", "sanderling.delegates.cpu.table"
        print(answer.sum(), *(name in sys.modules for name in names))
    """)
    runs = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
        )
        for _ in range(2)
    ]
    assert not runs[0].stderr and not runs[1].stderr, runs[0].stderr + runs[1].stderr
    cold, warm = (r.stdout.split() for r in runs)
    assert cold[1:] == ["True", "True"] and warm[1:] == ["False", "False"]
    assert cold[0] == warm[0]


def test_the_folder_is_private(folder: Path) -> None:
    run(stack())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in folder.iterdir())
    folder.chmod(0o755)
    forget()
    run(stack())
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(folder: Path) -> None:
    expected = run(stack())
    folder.chmod(0o777)
    forget()
    store.warn_once.cache_clear()
    with pytest.warns(CacheWarning, match="others may write"):
        np.testing.assert_array_equal(run(stack()), expected)


def plant(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that is not this user's own file, in the place of an entry."""
    if how == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    elif how == "writable":
        path.chmod(0o666)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "owner":
        os.chown(path, 12345, -1)
    else:
        real, inode = os.fstat, path.stat().st_ino

        def fstat(handle: int) -> os.stat_result:
            row = list(real(handle)[:10])
            row[4] = 12345 if row[1] == inode else row[4]
            return os.stat_result(row)

        monkeypatch.setattr(store.os, "fstat", fstat)


ROOT_ALONE = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
PLANTED = ["pipe", "link", "writable", "folder", "faked owner",
           pytest.param("owner", marks=ROOT_ALONE)]  # fmt: skip


@pytest.mark.parametrize("how", PLANTED)
@pytest.mark.filterwarnings("ignore::sanderling.errors.CacheWarning")
def test_what_is_planted_is_not_read(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither read nor waited for; a file of our own takes its place."""
    kept = store.Store()
    kept.record("name", 1)
    plant(folder / "name", how, monkeypatch)
    assert kept.read("name", lambda handle: pytest.fail("it was read")) is None
    monkeypatch.undo()
    monkeypatch.setenv("SANDERLING_CACHE", str(folder))
    if how != "folder":
        kept.record("name", 2)
        assert kept.recall("name") == 2


def test_planted_code_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(stack())
    plant(entries(folder)[0], "faked owner", monkeypatch)
    forget()
    store.warn_once.cache_clear()
    with pytest.warns(CacheWarning, match="not a file of this user's own"):
        np.testing.assert_array_equal(run(stack()), expected)


def test_a_folder_that_is_exchanged_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that is checked is the one that is read from."""
    kept, real, name = store.Store(), store._is_private, "name"
    kept.record(name, "ours")

    def exchanged(handle: int, path: Path, advice: str) -> bool:
        folder.rename(folder.with_name("before"))
        folder.mkdir()
        (folder / name).write_bytes(b"planted")
        return real(handle, path, advice)

    monkeypatch.setattr(store, "_is_private", exchanged)
    assert kept.recall(name) == "ours"


def forged(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The entry with another description, and a checksum that fits it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[8:16], "little")
    about, begin = json.loads(raw[16 : 16 + length]), store.next_page(16 + length)
    change(about)
    text = json.dumps(about).encode()
    head = cache.MAGIC + len(text).to_bytes(8, "little") + text
    body = head + bytes(-len(head) % store.PAGE) + raw[begin : -store.DIGEST]
    path.write_bytes(body + store.digest(np.frombuffer(body, np.uint64)))


WRONG: list[Callable[[dict[str, Any]], object]] = [
    lambda about: about.update(key="another"),
    lambda about: about.update(code=1 << 40),
    lambda about: about.update(data=1 << 40),
    lambda about: about["entries"].update(invoke=1 << 40),
    lambda about: about["entries"].clear(),
    lambda about: about.update(arena=-1),
    lambda about: about.update(sizes=[]),
    lambda about: about.pop("steps"),
    lambda about: about.update(unknown=1),
    lambda about: about.update(args="2"),
]


def test_wrong_content_with_a_right_checksum_is_not_taken(folder: Path) -> None:
    made = session(stack())
    expected = made(feed(made.model))
    (path,) = entries(folder)
    whole = path.read_bytes()
    for change in WRONG:
        path.write_bytes(whole)
        forged(path, change)
        forget()
        with pytest.warns(CacheWarning, match="made anew"):
            assert Cache().load(path.stem) is None
    np.testing.assert_array_equal(run(stack()), expected)


def test_an_empty_home_is_not_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    assert Cache().folder is None
    monkeypatch.setenv("SANDERLING_CACHE", "~/cache")
    assert Cache().folder is None
    monkeypatch.setenv("SANDERLING_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its rules forbid
    assert Cache().folder is None


def test_weights_and_code_are_mapped_from_the_file(folder: Path) -> None:
    made = session(stack())
    made(feed(made.model))
    maps = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
    if not maps:
        pytest.skip("no /proc/self/maps")
    mine = [line.split()[1] for line in maps.splitlines() if str(entries(folder)[0]) in line]
    assert any(m.startswith("r--s") for m in mine) and any(m.startswith("r-x") for m in mine)
    assert not any("w" in m for m in mine)


@pytest.mark.parametrize("spoil", ["flip", "cut", "empty", "swap"])
def test_damage_is_found_and_repaired(folder: Path, spoil: str) -> None:
    expected = run(stack())
    (path,) = entries(folder)
    raw = bytearray(path.read_bytes())
    if spoil == "flip":
        raw[len(raw) // 2] ^= 4
    elif spoil == "swap":
        raw[:8], raw[8:16] = raw[8:16], raw[:8]
    path.write_bytes(raw[: {"cut": len(raw) // 2, "empty": 0}.get(spoil, len(raw))])
    forget()
    with pytest.warns(CacheWarning, match="made anew"):
        np.testing.assert_array_equal(run(stack()), expected)
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(run(stack()), expected)


def test_any_byte_counts() -> None:
    """The checksum finds every single flipped bit, and exchanged words and pages."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**63, 4 * 512).astype(np.uint64)
    before = store.digest(words)
    for at in rng.integers(0, words.size, 100):
        other = words.copy()
        other[at] ^= np.uint64(1) << np.uint64(rng.integers(64))
        assert store.digest(other) != before
    for a, b in ((0, 1), (3, 512 + 3), (7, 1500)):
        other = words.copy()
        other[[a, b]] = other[[b, a]]
        assert store.digest(other) != before
    assert store.digest(words.reshape(4, 512)[[1, 0, 2, 3]].reshape(-1)) != before


def test_the_size_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used goes first."""
    models = [stack(seed=s) for s in range(3)]
    for model in models[:2]:
        run(model)
    first, second = sorted(entries(folder), key=lambda p: p.stat().st_mtime_ns)
    os.utime(second, ns=(0, 0))
    os.utime(first, ns=(1, 1))
    room = sum(path.stat().st_size for path in folder.iterdir()) + first.stat().st_size // 2
    monkeypatch.setenv("SANDERLING_CACHE_SIZE", str(room))
    run(models[2])
    assert not second.exists() and first.exists() and len(entries(folder)) == 2


def test_files_of_others_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may name a folder that holds more than our entries."""
    folder.mkdir()
    theirs = [folder / name for name in ("thesis.odt", "a" * 40 + ".tar.gz", ".new-model")]
    for path in theirs:
        path.write_bytes(bytes(4096))
        os.utime(path, ns=(0, 0))
    killed = folder / f".new-{'0f' * 8}"
    killed.write_bytes(bytes(4096))
    os.utime(killed, ns=(0, 0))
    monkeypatch.setenv("SANDERLING_CACHE_SIZE", "1")
    run(stack())
    assert not entries(folder) and not killed.exists()
    assert all(path.exists() for path in theirs)


def test_a_folder_that_goes_away_meanwhile_costs_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled is run, whoever removes the folder right after it was written to."""
    expected = run(stack())
    write = Cache.write

    def write_and_lose(cache: Cache, name: str, pieces: Any) -> bool:
        found = write(cache, name, pieces)
        shutil.rmtree(folder)
        return found

    monkeypatch.setattr(Cache, "write", write_and_lose)
    shutil.rmtree(folder)
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        np.testing.assert_array_equal(run(stack()), expected)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_folder_that_no_system_can_name(name: str, tmp_path: Path) -> None:
    store.warn_once.cache_clear()
    cache = Cache(str(tmp_path / name))
    with pytest.warns(CacheWarning, match="compiled code cannot be kept in"):
        assert not cache.write("0" * 40, [b"content"])
    assert cache.read("0" * 40, lambda handle: handle) is None
    cache.evict()


def test_off_and_elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", "off")
    run(stack())
    assert not folder.exists()
    monkeypatch.setenv("SANDERLING_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().folder == tmp_path / "xdg" / "sanderling"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Cache().folder == Path("~/.cache/sanderling").expanduser()


def test_a_folder_that_cannot_be_made_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", "/proc/none")
    store.warn_once.cache_clear()
    with pytest.warns(CacheWarning, match="SANDERLING_CACHE"):
        run(stack())


def test_keys_tell_parts_apart() -> None:
    """By structure, constants, quantisation and attributes; names do not matter."""

    def key(model: Model) -> bytes:
        graph = model.main
        return fingerprint(graph.ops, graph.inputs, graph.outputs)

    base = key(stack())
    renamed = stack()
    renamed.main.inputs[0].name = "other"
    assert key(renamed) == base == key(stack())
    weights, scale, attribute = stack(), stack(), stack()
    tensor = weights.main.find("w1")
    assert tensor.data is not None
    changed = tensor.data.copy()
    changed.flat[0] += 1
    tensor.data = changed
    quant = scale.main.find("y1").quant
    assert quant is not None
    quant.scale[0] = 0.051
    attribute.main.ops[0].attrs["stride_w"] = 2
    others = [key(m) for m in (weights, scale, attribute, stack(layers=5), stack(False))]
    assert len({base, *others}) == 6


def test_keys_depend_on_target_and_settings() -> None:
    made, content = Cache(), b"content"
    rows = list(targets.TARGETS.values())
    keys = [made.key("part", content, row, timed) for row in rows for timed in (True, False)]
    assert len(set(keys)) == len(keys)


def test_sessions_share_what_is_loaded() -> None:
    a, b = (session(stack()).plan().steps[0].executable for _ in range(2))
    assert a.compiled is b.compiled  # type: ignore[attr-defined]


def test_concurrent_processes(tmp_path: Path) -> None:
    """Several processes fill the same cache at once; all get the right answer."""
    save(stack(), tmp_path / "model.tflite")
    code = textwrap.dedent(f"""
        import sys
        import numpy as np
        from sanderling import load
        from sanderling.delegates.cpu.delegate import CpuDelegate
        from tests.support.conv_stacks import feed
        model = load({str(tmp_path / "model.tflite")!r})
        print(model.compile([CpuDelegate()])(feed(model)).astype(int).sum())
    """)
    command = [sys.executable, "-W", "error", "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(4)]
    answers = {p.communicate(timeout=120)[0] for p in running}
    model = load(tmp_path / "model.tflite")
    assert answers == {f"{run(model).astype(int).sum()}\n".encode()}


def test_the_host_is_known_without_llvm() -> None:
    """/proc/cpuinfo and LLVM agree on every feature that a target needs."""
    wanted = {f for row in targets.TARGETS.values() for f in row.needs}
    wanted -= {"sse2", "neon"}
    assert targets.cpu_features() & wanted == targets.llvm_features() & wanted
