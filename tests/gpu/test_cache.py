"""What the gpu delegate keeps on disk: used again, private, and made anew whenever it is not what
it should be."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sanderling import store
from sanderling.delegates.gpu import cache as cache_module
from sanderling.delegates.gpu import lower
from sanderling.delegates.gpu.cache import MAGIC, Entry, GpuCache
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices.device import Offers
from sanderling.delegates.gpu.options import UNKNOWN
from sanderling.delegates.gpu.recipe import Call, MemoryObject, Recipe
from sanderling.errors import CacheWarning
from tests.support.gpu_nets import compiled, dense

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
needs_device = pytest.mark.skipif(
    bool(GpuDelegate().lacks()), reason="there is no OpenCL device on this machine"
)
OFFERS = Offers("a device", "opencl", "a platform", "1.0", UNKNOWN, 2, 1 << 30, False, False, True)
KEY = "k" * 40


def entry() -> Entry:
    places = [MemoryObject("border", 64), MemoryObject("packed_weights", 512, 256)]
    calls = [Call("kernel", (4, 2, 1), (2, 1, 1), (0, 1), "product", "CONV_2D", 32)]
    weights = np.arange(1024, dtype=np.uint8)
    return Entry(Recipe(calls, places, [0], [0], [["kernel"]], weights), [b"binary"])


@pytest.fixture
def folder(tmp_path: Path) -> GpuCache:
    kept = GpuCache(str(tmp_path))
    kept.keep(KEY, entry())
    return kept


def path_of(kept: GpuCache) -> Path:
    assert kept.folder is not None
    return kept.folder / f"{KEY}.gpu"


# -- entries --------------------------------------------------------------------------------------


def test_an_entry_comes_back_whole(folder: GpuCache) -> None:
    found = folder.load(KEY)
    assert found is not None
    assert found.binaries == [b"binary"]
    assert found.recipe.calls == entry().recipe.calls
    assert found.recipe.places == entry().recipe.places
    np.testing.assert_array_equal(found.recipe.weights, entry().recipe.weights)


def test_it_is_private(folder: GpuCache) -> None:
    assert path_of(folder).stat().st_mode & 0o777 == 0o600
    assert path_of(folder).parent.stat().st_mode & 0o777 == 0o700


def _flip(place: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return damage


def _cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def _lie(path: Path) -> None:
    """A whole entry whose weights are larger than they are."""
    lying = entry()
    lying.recipe.places[1] = MemoryObject("packed_weights", 1 << 30)
    path.write_bytes(b"".join(bytes(p) for p in cache_module._pieces(KEY, lying)))


def _other(path: Path) -> None:
    path.write_bytes(b"".join(bytes(p) for p in cache_module._pieces("o" * 40, entry())))


def _missing_kernel(path: Path) -> None:
    lying = entry()
    lying.recipe.programs = [["another"]]
    path.write_bytes(b"".join(bytes(p) for p in cache_module._pieces(KEY, lying)))


DAMAGE = {
    "magic": _flip(0), "description": _flip(40), "binary": _flip(store.PAGE),
    "weights": _flip(2 * store.PAGE + 5), "digest": _flip(-1), "empty": _cut(0),
    "a head only": _cut(len(MAGIC)), "a byte less": _cut(-1), "a page less":
    _cut(-store.PAGE), "sizes": _lie, "another's": _other, "no kernel": _missing_kernel,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_removed(damage: Callable[[Path], None], folder: GpuCache) -> None:
    damage(path_of(folder))
    with pytest.warns(CacheWarning, match="damaged and is made anew"):
        assert folder.load(KEY) is None
    assert not path_of(folder).exists()


def test_what_others_may_write_is_not_used(folder: GpuCache) -> None:
    store.warn_once.cache_clear()
    path_of(folder).chmod(0o622)
    with pytest.warns(CacheWarning, match="not a file of this user's own"):
        assert folder.load(KEY) is None


def test_a_folder_that_others_may_write_to_is_not_used(folder: GpuCache) -> None:
    store.warn_once.cache_clear()
    path_of(folder).parent.chmod(0o777)
    with pytest.warns(CacheWarning, match="others may write to it"):
        assert folder.load(KEY) is None


def test_a_foreign_entry_is_not_used(folder: GpuCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here is another user's."""
    store.warn_once.cache_clear()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(CacheWarning, match="is not used"):
        assert folder.load(KEY) is None


def test_a_link_is_not_followed(folder: GpuCache, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    path_of(folder).rename(elsewhere)
    path_of(folder).symlink_to(elsewhere)
    assert folder.load(KEY) is None


def test_writers_side_by_side(folder: GpuCache) -> None:
    path_of(folder).unlink()
    threads = [threading.Thread(target=folder.keep, args=(KEY, entry())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folder.load(KEY) is not None
    assert [p.name for p in path_of(folder).parent.iterdir()] == [f"{KEY}.gpu"]


def test_a_killed_writer_leaves_nothing_that_is_read(folder: GpuCache) -> None:
    """It had written half of its file, beside the one that counts."""
    half = path_of(folder).read_bytes()[:3000]
    (path_of(folder).parent / ".new-0123456789abcdef").write_bytes(half)
    assert folder.load(KEY) is not None
    path_of(folder).unlink()
    assert folder.load(KEY) is None


OTHERS = {
    "device": replace(OFFERS, name="another"), "driver": replace(OFFERS, driver="1.1"),
    "platform": replace(OFFERS, platform="another"), "memory": replace(OFFERS, images=True),
}  # fmt: skip


@pytest.mark.parametrize("offers", OTHERS.values(), ids=OTHERS)
def test_another_device_has_its_own_entries(offers: Offers, tmp_path: Path) -> None:
    kept = GpuCache(str(tmp_path))
    assert kept.key(b"part", OFFERS) != kept.key(b"part", offers)


def test_an_outdated_entry_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = GpuCache(str(tmp_path))
    before = kept.key(b"part", OFFERS, ("model_token", "a"))
    assert before != kept.key(b"part", OFFERS, ("model_token", "b"))
    assert before != kept.key(b"other", OFFERS, ("model_token", "a"))
    monkeypatch.setattr(cache_module, "sources", lambda: "another version of this package")
    assert before != kept.key(b"part", OFFERS, ("model_token", "a"))


# -- on a device ----------------------------------------------------------------------------------


def refuse(*given: object) -> None:
    raise AssertionError("it was compiled again")


def kept_files(folder: Path) -> list[Path]:
    return sorted((folder / "sanderling-gpu").glob("*.gpu"))


@needs_device
def test_the_next_start_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense()
    compiled(model, serialization_dir=str(tmp_path))
    assert len(kept_files(tmp_path)) == 1
    monkeypatch.setattr(lower, "lower", refuse)
    compiled(dense(), serialization_dir=str(tmp_path))


@needs_device
def test_models_and_tokens_are_told_apart(tmp_path: Path) -> None:
    compiled(dense(), serialization_dir=str(tmp_path), model_token="a")
    compiled(dense(), serialization_dir=str(tmp_path), model_token="b")
    compiled(dense(units=4), serialization_dir=str(tmp_path), model_token="b")
    assert len(kept_files(tmp_path)) == 3


@needs_device
def test_programs_that_the_driver_refuses_are_built_again(tmp_path: Path) -> None:
    """The entry is whole, but not what this driver made."""
    compiled(dense(), serialization_dir=str(tmp_path))
    (path,) = kept_files(tmp_path)
    kept = GpuCache(str(tmp_path))
    found = kept.load(path.stem)
    assert found is not None
    broken = Entry(found.recipe, [b"not a program" for _ in found.binaries])
    path.write_bytes(b"".join(bytes(p) for p in cache_module._pieces(path.stem, broken)))
    compiled(dense(), serialization_dir=str(tmp_path))
    again = kept.load(path.stem)
    assert again is not None
    assert again.binaries != broken.binaries


@needs_device
def test_a_damaged_entry_is_rebuilt(tmp_path: Path) -> None:
    compiled(dense(), serialization_dir=str(tmp_path))
    (path,) = kept_files(tmp_path)
    size = path.stat().st_size
    _cut(size // 2)(path)
    with pytest.warns(CacheWarning, match="made anew"):
        compiled(dense(), serialization_dir=str(tmp_path))
    assert path.stat().st_size == size


@needs_device
def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    store.warn_once.cache_clear()
    monkeypatch.setattr(store, "_write_beside", full)
    with pytest.warns(CacheWarning, match="No space left") as caught:
        compiled(dense(), serialization_dir=str(tmp_path))
    said = [str(w.message) for w in caught if w.category is CacheWarning]
    assert any("give another folder as serialization_dir" in text for text in said)
    assert kept_files(tmp_path) == []


@needs_device
def test_without_a_cache_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    compiled(dense(), cache=False)
    assert not list(tmp_path.rglob("*.gpu"))


@pytest.mark.parametrize(
    "mode, is_used", [(0o700, 1), (0o755, 1), (0o1777, 1), (0o777, 0), (0o775, 0)]
)
def test_a_folder_in_which_others_may_rename_is_not_used(
    mode: int, is_used: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A sticky one, as /tmp is, lets others add files, and no more."""
    store.warn_once.cache_clear()
    given = tmp_path / "given"
    given.mkdir()
    GpuCache(str(given)).keep(KEY, entry())
    given.chmod(mode)
    kept = GpuCache(str(given))
    assert (kept.load(KEY) is not None) == is_used
    path_of(kept).unlink()
    kept.keep(KEY, entry())
    assert path_of(kept).exists() == is_used
    said = [str(w.message) for w in recwarn if w.category is CacheWarning]
    assert bool(said) != is_used and all(f"{given} is not used" in text for text in said)


def test_a_link_in_place_of_our_folder_is_not_followed(tmp_path: Path) -> None:
    """Else whoever may write to /tmp chooses which of the user's folders is emptied."""
    store.warn_once.cache_clear()
    given, own = tmp_path / "given", tmp_path / "own"
    given.mkdir()
    own.mkdir(mode=0o755)
    (given / cache_module.FOLDER).symlink_to(own)
    with pytest.warns(CacheWarning, match="cannot be kept"):
        GpuCache(str(given)).keep(KEY, entry())
    assert not list(own.iterdir()) and own.stat().st_mode & 0o777 == 0o755


def test_only_the_last_folder_of_a_path_is_made(tmp_path: Path) -> None:
    store.warn_once.cache_clear()
    GpuCache(str(tmp_path / "new")).keep(KEY, entry())
    assert GpuCache(str(tmp_path / "new")).load(KEY) is not None
    with pytest.warns(CacheWarning, match=f"there is no folder {tmp_path / 'mistyped'}; give"):
        GpuCache(str(tmp_path / "mistyped" / "x")).keep(KEY, entry())
    assert not (tmp_path / "mistyped").exists()


def test_descriptions_are_plain_text(folder: GpuCache) -> None:
    """Nothing in an entry is unpickled or evaluated."""
    content = path_of(folder).read_bytes()
    length = int.from_bytes(content[8:16], "little")
    assert json.loads(content[16 : 16 + length])["key"] == KEY
