"""Pictures to inputs: compiled code, fallback and definition are the same to the last bit."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sanderling.delegates.cpu.isa.targets import (
    TARGETS,
    Target,
    emulatable,
    emulated,
    host_target,
    runnable,
)
from sanderling.delegates.cpu.kernels.vision import image_input
from sanderling.delegates.cpu.kernels.vision.image_input_kinds import KINDS, Kind
from sanderling.delegates.cpu.runtime.image import Loaded
from sanderling.evaluate.images import pillow_memory, pixels
from sanderling.evaluate.images.pixels import PixelFinish, finished, read_pixels, tflite_bilinear
from sanderling.evaluate.images.preprocess import (
    PRESETS,
    Colour,
    Crop,
    Normalise,
    Pipeline,
    Resize,
    Transform,
    _ending,
)
from sanderling.ir import Array, DType, Quant, Tensor

SIZES = [((1, 1), (1, 1)), ((1, 1), (3, 5)), ((1, 9), (4, 4)), ((9, 1), (4, 4)), ((2, 3), (7, 8)),
         ((31, 40), (24, 24)), ((9, 7), (20, 13)), ((8, 8), (8, 8)), ((224, 224), (128, 128)),
         ((57, 63), (57, 20)), ((57, 63), (19, 63)), ((100, 3), (1, 1)), ((37, 53), (227, 227)),
         ((301, 97), (32, 96))]  # fmt: skip
FINISHES = [
    PixelFinish(),
    PixelFinish(dtype=DType.UINT8),
    PixelFinish((128.0,), dtype=DType.INT8),
    PixelFinish((127.5,), (1 / 127.5,)),
    PixelFinish((127.5,), (1 / 127.5,), DType.FLOAT16),
    PixelFinish((104.0, 117.0, 123.0), flipped=True),
    PixelFinish((123.675, 116.28, 103.53), (1 / 58.395, 1 / 57.12, 1 / 57.375)),
    PixelFinish(dtype=DType.UINT8, flipped=True),
    PixelFinish(dtype=DType.INT32),
]


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def by_hand(picture: Array, size: tuple[int, int]) -> Array:
    """RESIZE_BILINEAR as its reference kernel has it: one number after the other, in float32."""
    one, made = np.float32(1), np.empty((*size, picture.shape[2]), np.float32)
    steps = [np.float32(o) / np.float32(n) for o, n in zip(picture.shape, size, strict=False)]
    values = picture.astype(np.float32)
    for i in range(size[0]):
        y = np.float32(i) * steps[0]
        y0 = int(np.floor(y))
        y1, dy = min(y0 + 1, picture.shape[0] - 1), y - np.float32(y0)
        for j in range(size[1]):
            x = np.float32(j) * steps[1]
            x0 = int(np.floor(x))
            x1, dx = min(x0 + 1, picture.shape[1] - 1), x - np.float32(x0)
            near_y, near_x = one - dy, one - dx
            made[i, j] = (
                values[y0, x0] * near_y * near_x
                + values[y1, x0] * dy * near_x
                + values[y0, x1] * near_y * dx
                + values[y1, x1] * dy * dx
            )
    return made


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine for which there is no compiler."""
    monkeypatch.setattr(image_input, "function", lambda kind: None)
    yield


# -- the resize ---------------------------------------------------------------------------------


# Few enough pixels for a loop in Python.
@pytest.mark.parametrize(("old", "new"), [s for s in SIZES if s[1][0] * s[1][1] <= 10_000])
@pytest.mark.parametrize("colours", [1, 3, 4])
def test_the_definition_is_the_kernels(
    old: tuple[int, int], new: tuple[int, int], colours: int
) -> None:
    picture = noise(*old, colours)
    expected = by_hand(picture, new)
    assert np.array_equal(tflite_bilinear(picture, new), expected)
    assert np.array_equal(finished(picture, new, PixelFinish()), expected)


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("finish", FINISHES, ids=str)
def test_one_pass_is_all_steps(
    old: tuple[int, int], new: tuple[int, int], finish: PixelFinish
) -> None:
    whole = noise(old[0] + 4, old[1] + 5, 4)
    dense = np.ascontiguousarray(whole[: old[0], : old[1], :3])
    expected = finish(tflite_bilinear(dense, new))
    assert expected.dtype == finish.dtype.numpy
    crop = np.ascontiguousarray(whole[..., :3])[: old[0], : old[1]]  # rows lie apart
    apart = whole[: old[0], : old[1], :3]  # pixels too
    backwards = np.ascontiguousarray(dense[..., ::-1])[..., ::-1]  # blue comes first in memory
    turned = np.ascontiguousarray(dense[::-1])[::-1]
    for picture in (dense, crop, apart, backwards, turned, np.asfortranarray(dense)):
        made = finished(picture, new, finish)
        assert made.dtype == expected.dtype and np.array_equal(made, expected)
        assert not np.shares_memory(made, picture)


def test_reals_are_resized_too() -> None:
    reals = noise(20, 30, 3).astype(np.float32) / 7
    finish = PixelFinish((3.0,), (0.25,))
    assert np.array_equal(finished(reals, (9, 9), finish), finish(tflite_bilinear(reals, (9, 9))))
    assert np.array_equal(finished(reals, (20, 30), finish), finish(reals))


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_every_target_computes_the_same(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target = emulated(target) if emulatable(target) and not runnable(target) else target
    image = image_input.compiled(target)
    assert set(image.entries) == {k.name for k in KINDS}
    if not runnable(target):
        return
    loaded = Loaded(image)
    entries = {n: image_input._CALL(loaded.entry(n)) for n in loaded.image.entries}
    monkeypatch.setattr(image_input, "_code", lambda: entries)
    picture = noise(33, 50, 3)
    for finish in FINISHES:
        for size in ((17, 19), (33, 50), (40, 61)):
            expected = finish(tflite_bilinear(picture, size))
            assert np.array_equal(finished(picture, size, finish), expected), (finish, size)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_no_byte_beside_the_arrays_is_touched(kind: Kind) -> None:
    """The picture ends where memory does; the result lies between others' bytes."""
    run = image_input.function(kind)
    assert run is not None
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    page = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None)
    assert not libc.mprotect(ctypes.c_void_p(page.ctypes.data + mmap.PAGESIZE), mmap.PAGESIZE, 0)
    source = page[mmap.PAGESIZE - 11 * 13 * 3 : mmap.PAGESIZE].reshape(11, 13, 3)
    source[:] = noise(11, 13, 3)
    size = (4, 5) if kind.resized else (11, 13)
    dtype, count = np.dtype(np.float32 if kind.is_float else np.uint8), size[0] * size[1] * 3
    room = np.full(count + 64, 77, dtype)
    tables = [pixels._records(o, n).ctypes.data for o, n in zip((11, 13), size, strict=True)]
    run(
        room[32:].ctypes.data,
        source.ctypes.data,
        39,
        3,
        *tables,
        *size,
        PixelFinish().values.ctypes.data,
    )
    expected = tflite_bilinear(source, size)[..., :: -1 if kind.flipped else 1].astype(dtype)
    assert np.array_equal(room[32:-32].reshape(*size, 3), expected)
    assert (room[:32] == 77).all() and (room[-32:] == 77).all()
    assert not libc.mprotect(ctypes.c_void_p(page.ctypes.data + mmap.PAGESIZE), mmap.PAGESIZE, 3)


def test_code_is_kept_for_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    target = host_target()
    made = image_input._image(target)
    monkeypatch.setattr(image_input, "compiled", lambda target: pytest.fail("compiled again"))
    assert image_input._image(target) == made


# -- whole pipelines ----------------------------------------------------------------------------


def one_by_one(pipeline: Pipeline, path: Path, tensor: Tensor) -> Array:
    """The steps on plain arrays, as they are described."""
    with Image.open(path) as file:
        picture = np.asarray(file.convert("RGB"))
    for step in pipeline.steps:
        picture = _step(step, picture, (tensor.shape[1], tensor.shape[2]))
    if any(isinstance(s, Normalise) for s in pipeline.steps):
        if tensor.quant is None:
            return picture.astype(tensor.dtype.numpy)
        codes = picture / tensor.quant.scale[0]
        codes = np.trunc(codes + np.copysign(np.float32(0.5), codes)) + tensor.quant.zero_point[0]
        return np.clip(codes, *tensor.dtype.bounds).astype(tensor.dtype.numpy)
    reals = picture.astype(np.float32)
    if tensor.dtype.is_float:
        reals = (reals - np.float32(127.5)) * np.float32(1 / 127.5)
    return (reals - (128 if tensor.dtype is DType.INT8 else 0)).astype(tensor.dtype.numpy)


def _step(step: Transform, picture: Array, size: tuple[int, int]) -> Array:
    if isinstance(step, Crop):
        side = round(0.875 * min(picture.shape[:2]) + 1e-9)
        top, left = (int((n - side) / 2 + 0.5) for n in picture.shape[:2])
        return picture[top : top + side, left : left + side]
    if isinstance(step, Resize):
        return tflite_bilinear(picture, size)
    if isinstance(step, Colour):
        return picture[..., ::-1]
    assert isinstance(step, Normalise)
    factor = (1 / np.float64(step.std)).astype(np.float32)
    return (picture - np.float32(step.mean)) * factor


MODES = ["RGB", "L", "CMYK", "P", "RGBA", "LA", "1", "I;16"]
QUANT = Quant(np.float32([0.02]), np.int64([-7]))
PORTS = [
    (DType.FLOAT32, None),
    (DType.UINT8, None),
    (DType.INT8, None),
    (DType.INT8, QUANT),
    (DType.FLOAT16, None),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("modes")
    made = {}
    for mode in MODES:
        content = noise(41, 66, 3, seed=len(made))
        image = (
            Image.fromarray(content[..., 0].astype(np.uint16) * 200)
            if mode == "I;16"
            else (Image.fromarray(content).convert(mode))
        )
        made[mode] = folder / f"{len(made)}.{'jpg' if mode in ('RGB', 'L', 'CMYK') else 'png'}"
        image.save(made[mode])
    return made


@pytest.mark.parametrize("preset", ["tflite", "efficientnet-lite", "unit", "pixels", "caffe"])
@pytest.mark.parametrize("mode", MODES)
def test_pictures_of_any_mode(preset: str, mode: str, files: dict[str, Path]) -> None:
    pipeline = PRESETS[preset]
    for dtype, quant in PORTS:
        tensor = Tensor("x", dtype, (1, 24, 30, 3), quant=quant)
        made = pipeline(files[mode], tensor)[0]
        expected = one_by_one(pipeline, files[mode], tensor)
        assert made.dtype == expected.dtype and made.flags.c_contiguous
        assert np.array_equal(made[0], expected), (dtype, quant)


def test_a_machine_without_a_compiler_gives_the_same(files: dict[str, Path], no_code: None) -> None:
    for preset in ("tflite", "caffe", "efficientnet-lite"):
        test_pictures_of_any_mode(preset, "RGB", files)


def test_where_pixels_come_from_is_the_same(files: dict[str, Path]) -> None:
    """Of the steps in one pass, and of those one by one."""
    tensor = Tensor("x", DType.FLOAT32, (1, 24, 30, 3))
    frames = [
        Pipeline(steps)(files["RGB"], tensor)[1]
        for steps in ((Crop(), Resize()), (Crop(), Resize(), Crop(1.0, False)))
    ]
    assert _ending((Crop(), Resize()), DType.FLOAT32) is not None
    assert frames[0].scale == frames[1].scale and frames[0].origin == frames[1].origin
    assert frames[0].size == frames[1].size == (24, 30) and frames[0].source == (41, 66)


@pytest.mark.parametrize(("steps", "count"), [
    ((Crop(), Resize()), 1),
    ((Resize(), Colour(), Normalise()), 3),
    ((Resize(), Normalise()), 2),
    ((Resize(how="bicubic"), Normalise()), 0),
    ((Resize(), Crop()), 0),
    ((Normalise(), Resize()), 1),
    ((), 0),
])  # fmt: skip
def test_what_is_done_in_one_pass(steps: tuple[Transform, ...], count: int) -> None:
    ending = _ending(steps, DType.UINT8)
    assert len(ending.steps if ending else ()) == count


# -- Pillow's memory ----------------------------------------------------------------------------


def test_lent_pixels_are_the_pictures(files: dict[str, Path]) -> None:
    for path in files.values():
        assert np.array_equal(read_pixels(path, 3, lent=True), read_pixels(path, 3))
        assert np.array_equal(read_pixels(path, 1, lent=True), read_pixels(path, 1))


def test_lent_pixels_outlive_the_picture() -> None:
    content = noise(300, 200, 3)
    image = Image.fromarray(content)
    found = pillow_memory.borrowed(image)
    if found is None:
        pytest.skip("this Pillow lends nothing")
    view = found[10:20]
    del image, found
    others = [Image.new("RGB", (200, 300), (i, i, i)) for i in range(20)]
    assert np.array_equal(view, content[10:20]) and len(others) == 20
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "F", "I;16"])
def test_only_colours_are_lent(mode: str) -> None:
    assert pillow_memory.borrowed(Image.new(mode, (5, 4))) is None


def test_large_pictures_are_copied_or_right(tmp_path: Path) -> None:
    """Pillow keeps them in several pieces."""
    image = Image.new("RGB", (2500, 2500), (1, 2, 3))
    image.putpixel((2499, 2499), (9, 8, 7))
    image.save(tmp_path / "large.bmp")
    found = read_pixels(tmp_path / "large.bmp", 3, lent=True)
    assert found[0, 0].tolist() == [1, 2, 3] and found[-1, -1].tolist() == [9, 8, 7]


class Odd:
    """A picture of a Pillow that lends otherwise."""

    mode, width, height = "RGB", 6, 4

    def __init__(self, image: Any) -> None:
        self.image = image

    def __arrow_c_array__(self) -> Any:
        if self.image is None:
            raise ValueError("multiple blocks")
        return self.image.__arrow_c_array__()


def test_what_is_not_understood_is_not_taken() -> None:
    assert pillow_memory.borrowed(Odd(None)) is None
    if hasattr(Image.Image, "__arrow_c_array__"):
        assert pillow_memory.borrowed(Odd(Image.new("RGB", (6, 4)))) is not None
        assert (
            pillow_memory.borrowed(Odd(Image.new("RGB", (4, 4)))) is None
        )  # another number of pixels
        assert pillow_memory.borrowed(Odd(Image.new("L", (6, 4)))) is None
