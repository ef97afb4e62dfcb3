"""The readable text form of a model: printed, and parsed back to the same model.

    model version=3 description="a demo"
    graph @main(%x) -> (%y) {
      %x: f32[1,4] signature=[-1, 4]
      %w: f32[4] = [1.0, 2.0, 3.0, 4.0]
      %y: f32[1,4]

      %y = ADD(%x, %w) {fused_activation_function: "RELU"} version=2
    }
    signature "serve" @main(x: %x) -> (y: %y)

A name is bare or quoted; `%x~2` is the second tensor called x. Values with more elements than
the limit are elided as `#<hash>`; the parser takes them from `weights`. `//` starts a comment.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import TextError
from .graph import Graph, Model
from .parser import Blob, Parser
from .printer import Printer, content_hash

Weights = Model | Graph | Mapping[str, Blob]

__all__ = ["content_hash", "from_text", "to_text", "weights_of"]


def to_text(model: Model | Graph, inline_limit: int = 16) -> str:
    """The text of a model, or of a graph and the graphs it calls."""
    if isinstance(model, Graph):
        model = Model([model])
    return "\n".join(Printer(model, inline_limit).lines()) + "\n"


def from_text(text: str, weights: Weights | None = None) -> Model:
    """Parse the text form; `weights` holds the elided constants, by hash or as their model."""
    parser = Parser(text, None if weights is None else lambda: _by_hash(weights))
    try:
        return parser.model()
    except TextError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # A field of the wrong type, a number of 5,000 digits, brackets nested without end.
        parser.error(f"expected legal values before this place: {error}")


def weights_of(model: Model | Graph) -> dict[str, Blob]:
    """Everything that a text of the model may elide, by hash."""
    printer = Printer(Model([model]) if isinstance(model, Graph) else model, inline_limit=-1)
    for _ in printer.lines():
        pass
    return printer.elided


def _by_hash(weights: Weights) -> Mapping[str, Blob]:
    return weights_of(weights) if isinstance(weights, (Model, Graph)) else weights
