"""What was found, drawn onto the picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...glyphs import fonts_for, letters_of, spelled
from ...ir import Array
from ..images.pixels import image_module, read_pixels
from .output_readers import SEEN, Findings

DRAWN = (".png", ".jpg", ".jpeg", ".webp")
# Told apart on light and dark ground (Okabe and Ito's, lighter).
COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178),
           (213, 94, 0), (204, 121, 167))  # fmt: skip
# COCO's keypoints that a line joins: nose, eyes, ears, shoulders, elbows, wrists, hips, knees,
# ankles are 0 to 16.
BONES = ((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12),
         (11, 12), (11, 13), (13, 15), (12, 14), (14, 16))  # fmt: skip
BACKGROUND = 0  # the class that keeps the picture's own colours
VEIL = 0.55  # how much of a mask's colour covers the picture


def drawn(path: Path, found: Findings, target: Path) -> bytes:
    """The picture with what was found, as the kind of file that the target's name asks for."""
    kind = target.suffix.lower()
    if kind not in DRAWN:
        raise InputError(
            f"'{kind}' is not a kind of picture to draw",
            where=str(target),
            fix=f"end the name with {', '.join(DRAWN)}",
        )
    pixels = read_pixels(path)
    if found.mask is not None:
        pixels = _veiled(pixels, found.mask)
    canvas = _Canvas(pixels, [row["label"] for row in found.rows if "label" in row])
    _DRAW[found.kind](canvas, found)
    blob = io.BytesIO()
    canvas.picture.save(blob, {".jpg": "JPEG", ".jpeg": "JPEG"}.get(kind, kind[1:].upper()))
    return blob.getvalue()


def _veiled(pixels: Array, mask: Array) -> Array:
    table = np.array([_colour_of(n) for n in range(int(mask.max()) + 1)])
    colours = table[np.maximum(mask, 0)]
    covered = (mask != BACKGROUND)[..., None] * VEIL
    return (pixels * (1 - covered) + colours * covered).astype(np.uint8)


def _colour_of(number: int) -> tuple[int, ...]:
    """Return the colour of a class in a mask."""
    return COLOURS[(number - 1) % len(COLOURS)]


class _Canvas:
    """Pillow's drawing, with lines and letters in proportion to the picture."""

    def __init__(self, pixels: Array, texts: Sequence[str]) -> None:
        self.picture = image_module().fromarray(np.ascontiguousarray(pixels))
        from PIL import ImageDraw

        self.draw = ImageDraw.Draw(self.picture)
        short = min(self.picture.size)
        self.line = max(2, short // 160)
        self.font, self.has = _font(texts, max(11, short // 28))

    def label(self, at: tuple[float, float], text: str, colour: tuple[int, ...]) -> float:
        """The text on its colour, wholly inside the picture; returns where it ends."""
        text = spelled(text, self.has)
        left, top, right, bottom = self.draw.textbbox((0, 0), text, font=self.font)
        pad = self.line
        wide, tall = right - left + 2 * pad, bottom - top + 2 * pad
        x = min(max(at[0], 0), max(self.picture.width - wide, 0))
        y = min(max(at[1], 0), max(self.picture.height - tall, 0))
        self.draw.rectangle((x, y, x + wide, y + tall), fill=colour)
        ink = (0, 0, 0) if sum(colour) > 330 else (255, 255, 255)
        self.draw.text((x + pad - left, y + pad - top), text, fill=ink, font=self.font)
        return y + tall

    def legend(self, texts: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """One below the other, from the upper left corner."""
        below: float = self.line
        for text, colour in texts:
            below = self.label((self.line, below), text, colour) + self.line


def _font(texts: Sequence[str], size: int) -> tuple[Any, Any]:
    """A font, and which letters it has: the one of this machine's that has most of them."""
    from PIL import ImageFont

    wanted = {ord(c) for text in texts for c in text}
    try:
        path = max((f for _, f in fonts_for(texts)), key=lambda f: len(wanted & letters_of(f)))
    except ImportError:  # without matplotlib: Pillow's own, which has Latin letters
        return ImageFont.load_default(size), lambda c: c.isascii() and c.isprintable()
    return ImageFont.truetype(path, size), lambda c: ord(c) in letters_of(path)


def _boxes(canvas: _Canvas, found: Findings) -> None:
    for row in reversed(found.rows):  # the best on top
        colour = COLOURS[row["class"] % len(COLOURS)]
        left, top, right, bottom = row["box"]
        canvas.draw.rectangle(
            (left, top, max(left, right), max(top, bottom)), outline=colour, width=canvas.line
        )
        canvas.label((left, top), f"{row['label']} {row['score']:.2f}", colour)


def _points(canvas: _Canvas, found: Findings) -> None:
    assert found.points is not None, "findings of people have points"
    for number, person in enumerate(found.points):
        colour = COLOURS[number % len(COLOURS)]
        seen = person[:, 2] >= SEEN
        for a, b in BONES if len(person) == 17 else ():
            if seen[a] and seen[b]:
                canvas.draw.line((*person[a, :2], *person[b, :2]), fill=colour, width=canvas.line)
        radius = 1.6 * canvas.line
        for x, y, _ in person[seen]:
            canvas.draw.ellipse(
                (x - radius, y - radius, x + radius, y + radius), fill=colour, outline=(0, 0, 0)
            )


def _mask(canvas: _Canvas, found: Findings) -> None:
    things = [row for row in found.rows if row["class"] != BACKGROUND]
    canvas.legend(
        [(f"{row['label']} {row['share']:.0%}", _colour_of(row["class"])) for row in things]
    )


def _classes(canvas: _Canvas, found: Findings) -> None:
    shades = [COLOURS[2]] + [(70, 70, 70)] * len(found.rows)
    canvas.legend(
        [
            (f"{row['label']} {row['score']:.3g}", shade)
            for row, shade in zip(found.rows, shades, strict=False)
        ]
    )


_DRAW = {"boxes": _boxes, "keypoints": _points, "mask": _mask, "classes": _classes}
