"""From a picture to a model's input: steps as data, so that they can be saved, shown and changed.

A pipeline is a list of steps (`decode`, `crop`, `resize`, `letterbox`, `colour`, `normalise`); each
is a small record with one function. `PRESETS` has the usual ones; a preset file is one as JSON.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import InputError
from ...files import read_data
from ...ir import Array, DType, Tensor
from ...runtime.inputs import is_quantized, picture_layout, quantize_array
from .pixels import RAW, PixelFinish, Size, finished, read_pixels, read_raw, resize

SCHEMA = "sanderling.preprocess/1"
RESAMPLINGS = ("tflite", "nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


@dataclass
class Frame:
    """A picture on its way. A place of the input, times `scale`, plus `origin`, is its place in the
    file's picture: (y, x) each."""

    pixels: Array  # [height, width, colours], uint8 until it is resized or normalised
    target: Size  # what the model takes
    source: Size  # of the file
    scale: tuple[float, float] = (1.0, 1.0)
    origin: tuple[float, float] = (0.0, 0.0)
    is_raw: bool = False  # comes in the model's size: crop and resize let it pass
    is_normal: bool = False  # reals, whatever the input's type
    is_typed: bool = False  # what the input takes

    @property
    def size(self) -> Size:
        return self.pixels.shape[0], self.pixels.shape[1]

    def cut(self, top: int, left: int, height: int, width: int) -> None:
        self.pixels = self.pixels[top : top + height, left : left + width]
        self._move(top, left)

    def resized(self, pixels: Array) -> None:
        (old_y, old_x), self.pixels = self.size, pixels
        self.scale = (self.scale[0] * old_y / self.size[0], self.scale[1] * old_x / self.size[1])

    def _move(self, top: float, left: float) -> None:
        self.origin = (self.origin[0] + top * self.scale[0], self.origin[1] + left * self.scale[1])

    def padded(self, pixels: Array, top: int, left: int) -> None:
        self.pixels = pixels
        self._move(-top, -left)


# -- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transform:
    do: ClassVar[str] = ""

    def apply(self, frame: Frame) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Crop(Transform):
    """The middle: a fraction of the picture, of its shorter side for a square one; or a size. The
    rounding is TensorFlow Lite's."""

    do: ClassVar[str] = "crop"
    fraction: float | None = 0.875
    square: bool = True
    size: Size | None = None

    def __post_init__(self) -> None:
        _demand(
            self.size or (self.fraction and 0 < self.fraction <= 1),
            "crop",
            f"a fraction of {self.fraction}",
            "give one up to 1, or a size",
        )

    def apply(self, frame: Frame) -> None:
        height, width = self.size or (_round(self.fraction * n) for n in frame.size)  # type: ignore[operator]
        if self.square and self.size is None:
            height = width = min(height, width)
        if height > frame.size[0] or width > frame.size[1]:
            raise InputError(
                f"a crop of {height}x{width} is larger than the picture, "
                f"{frame.size[0]}x{frame.size[1]}",
                where="step 'crop'",
                fix="resize first, or crop a fraction",
            )
        top, left = (_round((n - m) / 2) for n, m in zip(frame.size, (height, width), strict=True))
        frame.cut(top, left, height, width)


@dataclass(frozen=True)
class Resize(Transform):
    """To a size (default: the model's). short: the shorter side becomes so long, the other follows.

    how: `tflite` is the bilinear of TensorFlow Lite's tools (corners aligned to the top left, no
    smoothing when shrinking); the others are Pillow's.
    """

    do: ClassVar[str] = "resize"
    size: Size | None = None
    short: int | None = None
    how: str = "tflite"

    def __post_init__(self) -> None:
        _check_how(self.how, "resize")
        _demand(not (self.size and self.short), "resize", "both size and short", "give one")

    def size_for(self, frame: Frame) -> Size:
        if not self.short:
            return self.size or frame.target
        height, width = (max(1, int(self.short * n / min(frame.size))) for n in frame.size)
        return height, width

    def apply(self, frame: Frame) -> None:
        size = self.size_for(frame)
        if size != frame.size or self.how == "tflite":
            frame.resized(resize(frame.pixels, size, self.how))


@dataclass(frozen=True)
class Letterbox(Transform):
    """As large as fits into the size (default: the model's), the rest filled."""

    do: ClassVar[str] = "letterbox"
    size: Size | None = None
    fill: float = 114
    centre: bool = False
    how: str = "bilinear"

    def __post_init__(self) -> None:
        _check_how(self.how, "letterbox")

    def apply(self, frame: Frame) -> None:
        size = self.size or frame.target
        ratio = min(n / m for n, m in zip(size, frame.size, strict=True))
        inner = tuple(max(1, int(n * ratio)) for n in frame.size)
        before = frame.scale
        frame.resized(resize(frame.pixels, inner, self.how))  # type: ignore[arg-type]
        # Those who train such models scale boxes back by the ratio, not by the sizes it gave when
        # rounded; a published figure has this in it.
        frame.scale = (before[0] / ratio, before[1] / ratio)
        pixels = np.full((*size, frame.pixels.shape[2]), self.fill, frame.pixels.dtype)
        top, left = ((n - m) // 2 if self.centre else 0 for n, m in zip(size, inner, strict=True))
        pixels[top : top + inner[0], left : left + inner[1]] = frame.pixels
        frame.padded(pixels, top, left)


@dataclass(frozen=True)
class Colour(Transform):
    """rgb, or bgr for models of Caffe's and OpenCV's."""

    do: ClassVar[str] = "colour"
    order: str = "bgr"

    def __post_init__(self) -> None:
        _demand(self.order in ("rgb", "bgr"), "colour", f"the order '{self.order}'", "rgb or bgr")

    def apply(self, frame: Frame) -> None:
        if self.order == "bgr":
            frame.pixels = frame.pixels[..., ::-1]


@dataclass(frozen=True)
class Normalise(Transform):
    """(pixel - mean) * (1 / std), for each colour or one for all, in float32."""

    do: ClassVar[str] = "normalise"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        _demand(all(s > 0 for s in self.std), "normalise", f"std {self.std}", "above 0")

    def apply(self, frame: Frame) -> None:
        self.check(frame)
        frame.pixels = finished(frame.pixels, frame.size, self.finish())
        frame.is_normal = True

    def check(self, frame: Frame) -> None:
        colours = frame.pixels.shape[2]
        for name, values in (("mean", self.mean), ("std", self.std)):
            _demand(
                len(values) in (1, colours),
                "normalise",
                f"{len(values)} numbers for {name}",
                f"give one, or {colours}: the model's colours",
            )

    def finish(self) -> PixelFinish:
        return PixelFinish(self.mean, tuple(1 / s for s in self.std))


STEPS: dict[str, type[Transform]] = {s.do: s for s in (Crop, Resize, Letterbox, Colour, Normalise)}
_PASS_RAW = (Crop, Resize, Letterbox)


def _demand(holds: object, step: str, what: str, fix: str) -> None:
    if not holds:
        raise InputError(what, where=f"step '{step}'", fix=fix)


def _check_how(how: str, step: str) -> None:
    _demand(
        how in RESAMPLINGS, step, f"no interpolation '{how}'", f"one of {', '.join(RESAMPLINGS)}"
    )


def _round(value: float) -> int:
    """Round halves away from zero, as C's round does."""
    return math.floor(value + 0.5)


# -- pipelines ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """Decode, then the steps, then the model's own type and layout.

    Without a `normalise` step, the input's type says how: float (x - 127.5) / 127.5, int8 x - 128,
    uint8 the pixels, fractions cut off; this is what TensorFlow Lite's tools do. With one, the
    result is reals, which an input of integers gets by its scale and zero point.
    """

    steps: tuple[Transform, ...] = (Crop(), Resize())
    name: str = ""

    def __call__(self, path: Path, tensor: Tensor) -> tuple[Array, Frame, dict[str, float]]:
        """The input, where its pixels come from, and the seconds of each step."""
        seconds: dict[str, float] = {}
        (width, height), colours, first = picture_layout(tensor)
        clock = _StepClock(seconds)
        if path.suffix.lower() == RAW:
            frame = Frame(
                read_raw(path, (height, width), colours),
                (height, width),
                (height, width),
                is_raw=True,
            )
        else:
            pixels = read_pixels(path, colours, lent=True)
            size = pixels.shape[0], pixels.shape[1]
            frame = Frame(pixels, (height or size[0], width or size[1]), size)
        clock("decode")
        ending = None if frame.is_raw else _ending(self.steps, tensor.dtype)
        for step in self.steps[: -len(ending.steps) if ending else None]:
            if not (frame.is_raw and isinstance(step, _PASS_RAW)):
                step.apply(frame)
            clock(step.do)
        if ending is not None:
            ending.apply(frame)
            clock(ending.name)
        array = _typed(frame, tensor)
        array = np.ascontiguousarray(array.transpose(2, 0, 1) if first else array)[None]
        clock("convert")
        return array, frame, seconds

    def check(self, tensor: Tensor) -> None:
        """Before any picture: does the pipeline end in the model's input?"""
        (width, height), _, _ = picture_layout(tensor)
        sizes = [getattr(s, "size", None) for s in self.steps if isinstance(s, _PASS_RAW)]
        if sizes and sizes[-1] and height and width and sizes[-1] != (height, width):
            raise InputError(
                f"the steps end in {sizes[-1][0]}x{sizes[-1][1]}, the model takes {height}x{width}",
                where=f"input '{tensor.name}'",
                fix="end with a resize, which takes the model's size",
            )
        if not any(isinstance(s, Resize | Letterbox | Crop) for s in self.steps) and height:
            raise InputError(
                "no step brings pictures to the model's size",
                where=f"input '{tensor.name}'",
                fix="add a resize",
            )

    def to_json(self) -> dict[str, Any]:
        steps = [{"do": s.do} | asdict(s) for s in self.steps]
        return {"schema": SCHEMA, "name": self.name, "steps": steps}

    @staticmethod
    def from_json(record: Mapping[str, Any], where: str = "") -> Pipeline:
        if record.get("schema") != SCHEMA or not isinstance(record.get("steps"), list):
            raise InputError(
                f"not a preset: its schema is {record.get('schema')!r}",
                where=where,
                fix=f'it must have "schema": "{SCHEMA}" and "steps": [...]',
            )
        return Pipeline(
            tuple(_step(s, where) for s in record["steps"]), str(record.get("name", ""))
        )

    def without(self, *kinds: type[Transform]) -> Pipeline:
        return replace(self, steps=tuple(s for s in self.steps if not isinstance(s, kinds)))

    def then(self, *steps: Transform) -> Pipeline:
        return replace(self, steps=(*self.steps, *steps))


@dataclass
class _StepClock:
    seconds: dict[str, float]
    last: float = field(default_factory=time.perf_counter)

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


def _step(record: Any, where: str) -> Transform:
    kind = STEPS.get(record.get("do", "")) if isinstance(record, dict) else None
    if kind is None:
        raise InputError(f"no step {record!r}", where=where, fix=f"steps are {', '.join(STEPS)}")
    names = [f.name for f in fields(kind)]
    strange = [n for n in record if n not in (*names, "do")]
    if strange:
        raise InputError(
            f"step '{kind.do}' has no '{strange[0]}'", where=where, fix=f"it has {', '.join(names)}"
        )
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in record.items() if n != "do"}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(
            f"step '{kind.do}': {error}", where=where, fix="see the steps that --save-preset writes"
        ) from error


@dataclass(frozen=True)
class Ending:
    """The steps from the last resize on, done in one pass with the conversion to the input's type;
    the same numbers as one by one."""

    steps: tuple[Transform, ...]
    finish: PixelFinish
    is_normal: bool

    @property
    def name(self) -> str:
        return "+".join(s.do for s in self.steps)

    def apply(self, frame: Frame) -> None:
        first, last = self.steps[0], self.steps[-1]
        assert isinstance(first, Resize)
        if isinstance(last, Normalise):
            last.check(frame)
        frame.resized(finished(frame.pixels, first.size_for(frame), self.finish))
        frame.is_normal, frame.is_typed = self.is_normal, not self.is_normal


@lru_cache(64)
def _ending(steps: tuple[Transform, ...], dtype: DType) -> Ending | None:
    """Return the ending of these steps, or None where they end in another way."""
    rest = list(steps)
    norm = rest.pop() if rest and isinstance(rest[-1], Normalise) else None
    colour = rest.pop() if rest and isinstance(rest[-1], Colour) else None
    if not rest or not isinstance(rest[-1], Resize) or rest[-1].how != "tflite":
        return None
    finish = norm.finish() if isinstance(norm, Normalise) else _by_type(dtype)
    flipped = isinstance(colour, Colour) and colour.order == "bgr"
    return Ending(steps[len(rest) - 1 :], replace(finish, flipped=flipped), norm is not None)


def _typed(frame: Frame, tensor: Tensor) -> Array:
    pixels, dtype = frame.pixels, tensor.dtype
    if frame.is_normal:
        if is_quantized(tensor):
            return quantize_array(pixels[None], tensor)[0]
        return np.asarray(pixels, dtype.numpy)
    return pixels if frame.is_typed else finished(pixels, frame.size, _by_type(dtype))


def _by_type(dtype: DType) -> PixelFinish:
    """What TensorFlow Lite's tools do to pixels, by the input's type."""
    if dtype.is_float:
        return PixelFinish((127.5,), (1 / 127.5,), dtype)
    return PixelFinish((128.0,), dtype=dtype) if dtype is DType.INT8 else PixelFinish(dtype=dtype)


# -- presets ------------------------------------------------------------------------------------

_IMAGENET = Normalise((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
PRESETS: dict[str, Pipeline] = {
    p.name: p
    for p in (
        Pipeline((Crop(), Resize()), "tflite"),
        Pipeline((Crop(), Resize(), Normalise((127.0,), (128.0,))), "efficientnet-lite"),
        Pipeline((Crop(), Resize(), Normalise((0.0,), (255.0,))), "unit"),
        Pipeline((Crop(), Resize(), Normalise((0.0,), (1.0,))), "pixels"),
        Pipeline(
            (Resize(short=256, how="bilinear"), Crop(None, size=(224, 224)), _IMAGENET),
            "torchvision",
        ),
        Pipeline(
            (Crop(), Resize(), Colour("bgr"), Normalise((104.0, 117.0, 123.0), (1.0,))), "caffe"
        ),
        Pipeline((Resize(),), "resize"),
        Pipeline((Letterbox(), Colour("bgr"), Normalise((0.0,), (1.0,))), "yolox"),
    )
}


def load_pipeline(name: str) -> Pipeline:
    """A preset by its name, or one saved as JSON."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"there is no preset '{name}'",
            where="--preset",
            fix=f"the presets are {', '.join(PRESETS)}, or give a file that --save-preset wrote",
        )
    record = read_data(path, "the preset", "write one with --save-preset")
    return Pipeline.from_json(record if isinstance(record, dict) else {}, str(path))


def numbers(text: str, option: str, count: Sequence[int] = (1, 3)) -> tuple[float, ...]:
    """1.5 or 1,2,3."""
    try:
        values = tuple(float(n) for n in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in count:
        raise InputError(
            f"'{text}' is not {' or '.join(map(str, count))} numbers",
            where=option,
            fix=f"for example {option} 127.5",
        )
    return values


def adjusted(
    base: Pipeline,
    *,
    crop: str = "",
    short_side: int = 0,
    resample: str = "",
    mean: str = "",
    std: str = "",
    bgr: bool | None = None,
) -> Pipeline:
    """A pipeline with single steps changed, as options say it; what is empty stays."""
    made = base
    if crop:
        made = _placed(made.without(Crop), _crop(crop), before=Resize if not short_side else None)
    if short_side:
        kept = made.without(Resize)
        crops = tuple(s for s in kept.steps if isinstance(s, Crop))
        made = replace(kept, steps=(Resize(short=short_side), *crops, *kept.without(Crop).steps))
        made = _placed(made, (Resize(),), before=None, after=Crop)
    if resample:
        made = replace(
            made,
            steps=tuple(
                replace(s, how=resample) if isinstance(s, Resize | Letterbox) else s
                for s in made.steps
            ),
        )
    if bgr is not None:
        made = _placed(made.without(Colour), (Colour("bgr"),) if bgr else (), before=Normalise)
    if mean or std:
        old = next((s for s in made.steps if isinstance(s, Normalise)), Normalise())
        new = replace(
            old,
            **({"mean": numbers(mean, "--mean")} if mean else {}),
            **({"std": numbers(std, "--std")} if std else {}),
        )
        made = made.without(Normalise).then(new)
    return made if made == base else replace(made, name="")


def _crop(text: str) -> tuple[Transform, ...]:
    """none, a fraction, or HEIGHTxWIDTH."""
    if text == "none":
        return ()
    if "x" in text:
        sides = text.split("x")
        _demand(
            len(sides) == 2 and all(s.isdecimal() and int(s) for s in sides),
            "crop",
            f"'{text}'",
            "write a size as 224x224",
        )
        return (Crop(None, size=(int(sides[0]), int(sides[1]))),)
    return (Crop(numbers(text, "--crop", (1,))[0]),)


def _placed(
    pipeline: Pipeline,
    new: Iterable[Transform],
    *,
    before: type[Transform] | None,
    after: type[Transform] | None = None,
) -> Pipeline:
    """The steps put before the first of a kind, or after the last of another; else at the end, but
    never behind the normalisation."""
    steps = list(pipeline.steps)
    places = [i for i, s in enumerate(steps) if before and isinstance(s, before)]
    behind = [i + 1 for i, s in enumerate(steps) if after and isinstance(s, after)]
    norms = [i for i, s in enumerate(steps) if isinstance(s, Colour | Normalise)]
    at = (places or behind[-1:] or norms or [len(steps)])[0]
    return replace(pipeline, steps=(*steps[:at], *new, *steps[at:]))
