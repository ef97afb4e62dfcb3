"""The plans that a session has made, found again by graph and input shapes; and the state that they
share."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..config import MAX_MEMORY
from ..errors import ModelError
from ..format import known_models
from ..ir import Array, Graph, Model, Shape, Tensor
from ..spans import span
from .plan import Plan
from .plan_store import PlanStore
from .settings import Settings

if TYPE_CHECKING:
    from ..ops import State
    from .planner import Planner
    from .subgraph import Subgraph

# What is not needed to run a plan that comes from disk is imported in functions.
# Plans kept for shapes that come back, of each graph; an old one is dropped for a new one.
MOST_PLANS = 8
Key = tuple[Graph, tuple[Shape, ...]]


class Plans:
    """The plans of one model at one session's settings. verified: the model is, already."""

    def __init__(self, model: Model, settings: Settings, verified: bool) -> None:
        self._model, self._settings, self._verified = model, settings, verified
        self._store = PlanStore(settings)
        self._made: dict[Key, Plan] = {}
        # How control flow runs graphs on shapes; until another plan is made, which may have taken
        # the place of one of these.
        self._subgraphs: dict[Key, Subgraph] = {}
        self.seconds = 0.0  # that the making of plans took so far, compilation included
        self.variables: dict[Tensor, Array] = {}  # by the file's tensor: they outlive a plan

    @cached_property
    def state(self) -> State:
        """What operators keep from run to run."""
        from ..ops import State

        return State(_weakly(self._call), _weakly(self._loop))

    @property
    def has_kept(self) -> bool:
        """Whether operators keep something now: resource variables, tables, generators. The state
        of a model without any is not even made."""
        state: State | None = vars(self).get("state")
        return state is not None and bool(state.variables or state.tables or state.generators)

    @cached_property
    def _planner(self) -> Planner:
        from .planner import Planner

        return Planner(self._settings, self.state, self.variables)

    def __iter__(self) -> Iterator[Plan]:
        return iter(list(self._made.values()))

    def __len__(self) -> int:
        return len(self._made)

    # -- finding and making -----------------------------------------------------------------------

    def find(self, graph: Graph, shapes: Sequence[Shape], whole: bool = False) -> Plan:
        """A plan to run; whole: also to look at."""
        key = (graph, tuple(map(tuple, shapes)))
        made = self._made.pop(key, None)
        if made is None or (whole and not made.is_whole):
            self._subgraphs.clear()
            begin = time.perf_counter()
            made = self.make(*key, whole)
            self.seconds += time.perf_counter() - begin
            made.again = _maker(weakref.ref(self), *key)
            self._make_room(made.held)
        self._made[key] = made  # the latest stands last: the first is the longest unused
        return made

    def _make_room(self, size: int) -> None:
        """For one more plan. All together hold no more memory than one may: a loop whose shapes
        grow makes one after the other."""
        held, most = size + sum(p.held for p in self), MAX_MEMORY.size()
        count = MOST_PLANS * len(self._model.graphs)
        while self._made and (len(self._made) >= count or held > most):
            gone = self._made.pop(next(iter(self._made)))
            gone.subgraph = None  # it refers back: a plan goes when its last user does
            held -= gone.held

    def make(self, graph: Graph, shapes: tuple[Shape, ...], whole: bool = False) -> Plan:
        """A new plan: from disk, if it is there and need not be whole, or from the graph."""
        about = {
            "graph": graph.name,
            "inputs": shapes,
            "threads": self._settings.threads,
            "delegates": [d.name for d in self._settings.delegates],
        }
        with span("plan", "plan", about):
            with span("recall a plan", "plan"):
                made = None if whole else self._store.recall(self._model, graph, shapes)
            return made or self._planned(graph, shapes)

    def _planned(self, graph: Graph, shapes: tuple[Shape, ...]) -> Plan:
        content = known_models.content_of(self._model)
        if not self._verified:
            verify_model(self._model)
            self._verified = True
        made = self._planner.plan(graph, shapes)
        with span("remember the plan", "plan"):
            self._store.keep(self._model, content, graph, shapes, made)
        return made

    # -- how control flow runs a graph: on the same delegates, with the same state ----------------

    def _call(self, graph: Graph, arrays: Sequence[Array]) -> list[Array]:
        return self._subgraph(graph, arrays).call(arrays)

    def _loop(self, condition: Graph, body: Graph, arrays: Sequence[Array]) -> list[Array] | None:
        """A WHILE whose values keep their shapes."""
        test = self._subgraph(condition, arrays).plan
        return self._subgraph(body, arrays).loop(test, arrays)

    def _subgraph(self, graph: Graph, arrays: Sequence[Array]) -> Subgraph:
        key = graph, tuple([a.shape for a in arrays])
        found = self._subgraphs.get(key)
        if found is not None:
            return found
        from .subgraph import subgraph_of

        if len(arrays) != len(graph.inputs):
            raise ModelError(
                f"called with {len(arrays)} values, it takes {len(graph.inputs)}",
                where=f"graph '{graph.name}'",
            )
        found = self._subgraphs[key] = subgraph_of(self.find(*key))
        return found


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Without a circle: what the plans hold goes with the session, which whoever runs holds."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        known = found()
        assert known is not None, "a plan is run by a session"
        return known(*args)

    return call


def verify_model(model: Model) -> None:
    """Before the first plan that is made from the graph itself."""
    from ..ir.verify import verify

    with span("verify", "load"):
        verify(model)


def _maker(
    plans: weakref.ref[Plans], graph: Graph, shapes: tuple[Shape, ...]
) -> Callable[[], Plan | None]:
    """Makes a plan anew. It does not keep the session: workers leave with its last user."""

    def again() -> Plan | None:
        found = plans()
        return None if found is None else found.make(graph, shapes)

    return again
