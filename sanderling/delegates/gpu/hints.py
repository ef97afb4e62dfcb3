"""Hints for whoever changes a model: channels that cost more than they are.

The last dimension lies in slices of four (layout.py), so that five channels take the memory and
the time of eight, and three those of four. An input of three channels, a picture in RGB, is copied
into slices of four in every run; one that comes as RGBX is used where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from ...ir import Op, Tensor
from . import layout

RGB = 3


@dataclass(frozen=True)
class ChannelHint:
    """A tensor whose channels do not fill their slices. nbytes: that it takes on the device in f32;
    wasted: of those, what holds nothing. fed: bytes that the caller feeds, 0 for no input."""

    tensor: str
    shape: tuple[int, ...]
    channels: int
    costs: int
    nbytes: int
    wasted: int
    fed: int

    @property
    def text(self) -> str:
        """For people."""
        share = f"{self.channels} channels cost what {self.costs} do"
        if self.fed and self.channels == RGB:
            wider = ", ".join(map(str, (*self.shape[:-1], 4)))
            return (
                f"{share}; fed as RGBX, [{wider}], a kernel that copies {self.fed} bytes in every "
                "run would be saved (in a model of floats) or read whole vectors (of codes)"
            )
        return f"{share}: {self.costs - self.channels} more would be free"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"text": self.text}


def channel_hints(ops: Iterable[Op], inputs: Iterable[Tensor]) -> list[ChannelHint]:
    """Hints on the tensors that these ops read and make, those that waste most first. inputs: what
    the caller feeds. Rows of one number, such as scores, are no channels."""
    fed, ops = set(inputs), list(ops)
    tensors = dict.fromkeys(t for op in ops for t in (*op.inputs, *op.outputs) if t is not None)
    found = [_hint(t, t.nbytes if t in fed else 0) for t in tensors if _has_channels(t)]
    return sorted((hint for hint in found if hint.wasted), key=lambda hint: -hint.wasted)


def _has_channels(tensor: Tensor) -> bool:
    shape = tensor.shape
    return not tensor.is_constant and not tensor.is_dynamic and len(shape) == 4 and shape[-1] > 1


def _hint(tensor: Tensor, fed: int) -> ChannelHint:
    nbytes = 16 * layout.vectors(tensor.shape)
    channels = tensor.shape[-1]
    wasted = nbytes - 4 * prod(tensor.shape)
    return ChannelHint(
        tensor.name,
        tuple(tensor.shape),
        channels,
        4 * layout.slices(tensor.shape),
        nbytes,
        wasted,
        fed,
    )
