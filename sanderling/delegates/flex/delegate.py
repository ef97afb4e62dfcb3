"""TensorFlow runs the Flex operators of a model (select TF ops); all others stay elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import DelegateError, InputError, UnsupportedError
from ...ir import Array, Graph, Op
from ...ops import Spec
from ...runtime.delegate import Delegate, Executable, Options
from ..extras import require_extra
from .calls import PartCalls, result_specs, settle
from .node import flex_node, is_flex, refusal


class FlexDelegate(Delegate):
    """Takes operators that a converter wrote as `Flex` and the name of an operator of TensorFlow's.

    trusted: operators that may run beyond those of `allowed.py`, as the user says.
    """

    name = "flex"

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        require_extra("tensorflow", "flex", self.name)
        self.trusted = frozenset(trusted)

    def configure(self, options: Mapping[str, Any]) -> FlexDelegate:
        """One option, `trusted`: names of operators, separated by commas, or a list of them."""
        if set(options) - {"trusted"}:
            raise InputError(
                f"it has no option {', '.join(sorted(map(str, set(options) - {'trusted'})))}",
                where=f"delegate '{self.name}'",
                fix="its option is trusted: names of TensorFlow's operators, such as ReadFile",
            )
        given = options.get("trusted", ())
        return FlexDelegate(given.replace(",", " ").split() if isinstance(given, str) else given)

    def refuses(self, op: Op) -> str | None:
        return refusal(op, self.trusted)

    def infer(self, op: Op, specs: Sequence[Spec | None]) -> list[Spec] | None:
        """Nobody else can run a Flex operator, so that a refusal is an error here already."""
        if not is_flex(op):
            return None
        flex_node(op)  # a damaged one is the model's fault
        reason = self.refuses(op)
        if reason is not None:
            raise UnsupportedError(reason, where=op.where, fix=self._way_out(op))
        return result_specs(op, specs)

    def _way_out(self, op: Op) -> str:
        name = flex_node(op).name
        if refusal(op, {name}) is not None:
            return "convert the model without this operator"
        return (
            f"if you trust the file: sanderling.load_delegate('flex', {{'trusted': '{name}'}}); "
            "if not, do not run it"
        )

    def compile(self, part: Graph, options: Options) -> FlexExecutable:
        return FlexExecutable(part)


class FlexExecutable(Executable):
    """A part as calls of TensorFlow; operands and results are copied."""

    def __init__(self, part: Graph) -> None:
        self.part, self.calls = part, PartCalls(part)

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        made = self.calls(inputs)
        for place, (array, tensor) in enumerate(zip(made, self.part.outputs, strict=True)):
            target = outputs[place]
            if target is not None and target.shape != array.shape:
                raise DelegateError(
                    f"TensorFlow made {list(array.shape)} of '{tensor.name}', and had said "
                    f"{list(target.shape)} before",
                    fix="report the model",
                )
            outputs[place] = settle(array, tensor, target)
