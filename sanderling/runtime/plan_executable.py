"""A plan as a part of another plan."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Array
from .binding import Binding
from .delegate import Call, Executable
from .plan import Plan


class PlanExecutable(Executable):
    """Runs all steps of a plan, whose graph was a part."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self._bound(inputs, outputs).run_all()

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Call:
        return self._bound(inputs, outputs).run

    def _bound(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Binding:
        """Variables are the caller's arrays, which steps update in place."""
        given = zip(self.plan.graph.inputs, inputs, strict=True)
        self.plan.variables |= {t: array for t, array in given if t in self.plan.variables}
        return Binding(self.plan, inputs, outputs, self.plan.graph.outputs)

    def memory(self) -> dict[str, int]:
        return self.plan.memory()
