"""What image_input.py and its code agree on: the functions' arguments, and one for each kind."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

COLOURS = 3
LANES = COLOURS + 1  # the last one idles
# to, from, bytes from row to row and from pixel to pixel, rows, columns, height, width, values.
# rows and columns: records of 16 bytes, which are the places (int32) of the two neighbours and
# their shares (float32). values: LANES means, and as many factors (float32).
ARGUMENTS = "ppiippiip"


class Kind(NamedTuple):
    """resized: or of the right size already, then rows and columns are not looked at. flipped: blue
    first. Results that are no floats are bytes, cut off towards zero."""

    resized: bool
    flipped: bool
    is_float: bool

    @property
    def name(self) -> str:
        return "_".join(
            (
                "bilinear" if self.resized else "copy",
                "bgr" if self.flipped else "rgb",
                "f32" if self.is_float else "i8",
            )
        )


KINDS = tuple(Kind(*flags) for flags in product((True, False), repeat=3))
