"""Recurrent operators in PyTorch: LSTM and RNN, one step, a sequence or both directions.

States begin at zero for every call, since samples have nothing to do with each other; within a
sequence gradients go back through time. The operands stand where ops/lstm_cell.py says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ...ir import Op
from ...ops.base import attr
from ...ops.lstm_cell import CELL, FORGET, INPUT, OUTPUT, CellPlaces
from .functions import Function, Tensors, activate

ONE_CELL = CellPlaces(1, 18, norm=20)
FORWARD, BACKWARD = CellPlaces(1, 35, aux=40), CellPlaces(18, 37, aux=44)
NORM_LEAST = 1e-8


def _get(tensors: Tensors, place: int | None) -> torch.Tensor | None:
    return None if place is None or place >= len(tensors) else tensors[place]


def _need(tensors: Tensors, place: int | None) -> torch.Tensor:
    found = _get(tensors, place)
    assert found is not None, "the operator's definition demands it"
    return found


def _through(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A product with a matrix, or with a diagonal that is kept as a vector."""
    return x * weights if weights.dim() == 1 else F.linear(x, weights)


def _clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return F.hardtanh(x, -limit, limit) if limit > 0 else x


class _Cell:
    """One LSTM cell over x [time, batch, depth]."""

    def __init__(
        self,
        op: Op,
        tensors: Tensors,
        at: CellPlaces,
        x: torch.Tensor,
        aux: torch.Tensor | None = None,
    ) -> None:
        self.op, self.tensors, self.at = op, tensors, at
        has_input = _get(tensors, at.input(INPUT)) is not None
        gates = (INPUT, FORGET, CELL, OUTPUT) if has_input else (FORGET, CELL, OUTPUT)
        # What does not depend on the state is computed for all time steps at once.
        self.given = {gate: self._from_input(gate, x, aux) for gate in gates}
        self.units = _need(tensors, at.recurrent(OUTPUT)).shape[-1]
        self.cells = _need(tensors, at.input(OUTPUT)).shape[0]

    def _from_input(self, gate: int, x: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        found = F.linear(x, _need(self.tensors, self.at.input(gate)))
        if self._norm(gate) is None:
            found = found + _need(self.tensors, self.at.bias(gate))
        side = _get(self.tensors, self.at.aux_of(gate))
        return found if aux is None or side is None else found + F.linear(aux, side)

    def _norm(self, gate: int) -> torch.Tensor | None:
        return _get(self.tensors, self.at.norm_of(gate))

    def _gate(
        self, gate: int, time: int, hidden: torch.Tensor, memory: torch.Tensor
    ) -> torch.Tensor:
        weights = _need(self.tensors, self.at.recurrent(gate))
        total = self.given[gate][time] + _through(weights, hidden)
        peephole, norm = _get(self.tensors, self.at.peephole(gate)), self._norm(gate)
        if peephole is not None:
            total = total + peephole * memory
        if norm is None:
            return total
        variance, mean = torch.var_mean(total, -1, correction=0, keepdim=True)
        plain = (total - mean) * torch.rsqrt(variance + NORM_LEAST)
        return plain * norm + _need(self.tensors, self.at.bias(gate))

    def _projected(self, x: torch.Tensor) -> torch.Tensor:
        weights = _get(self.tensors, self.at.projection)
        if weights is None:
            return x
        found = F.linear(x, weights, _get(self.tensors, self.at.projection + 1))
        return _clip(found, float(attr(self.op, "proj_clip")))

    def run(self, reverse: bool = False) -> torch.Tensor:
        """Outputs [time, batch, units]."""
        time, batch = self.given[OUTPUT].shape[:2]
        hidden = self.given[OUTPUT].new_zeros(batch, self.units)
        memory = self.given[OUTPUT].new_zeros(batch, self.cells)
        found: list[torch.Tensor] = []
        for t in reversed(range(time)) if reverse else range(time):
            forget = torch.sigmoid(self._gate(FORGET, t, hidden, memory))
            admit = (
                torch.sigmoid(self._gate(INPUT, t, hidden, memory))
                if INPUT in self.given
                else 1 - forget
            )
            update = activate(self.op, self._gate(CELL, t, hidden, memory))
            memory = _clip(forget * memory + update * admit, float(attr(self.op, "cell_clip")))
            emit = torch.sigmoid(self._gate(OUTPUT, t, hidden, memory))
            hidden = self._projected(emit * activate(self.op, memory))
            found.append(hidden)
        return torch.stack(found[::-1] if reverse else found)


def _by_time(op: Op, x: torch.Tensor) -> torch.Tensor:
    """[batch, time, ...] to [time, batch, ...] or back, unless time stands first."""
    return x if bool(attr(op, "time_major")) else x.transpose(0, 1)


def lstm(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [_Cell(op, tensors, ONE_CELL, _need(tensors, 0)[None]).run()[0]]


def sequence_lstm(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x = _by_time(op, _need(tensors, 0))
    return [_by_time(op, _Cell(op, tensors, ONE_CELL, x).run())]


def _both(
    op: Op, tensors: Tensors, second: int, has_weights: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Forward input, backward input, auxiliary input, as ops/sequence.py has them."""
    x, other = _by_time(op, _need(tensors, 0)), _get(tensors, second)
    if other is None:
        return x, x, None
    other = _by_time(op, other)
    return (x, x, other) if has_weights else (x, other, None)


def _merged(op: Op, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if bool(attr(op, "merge_outputs")):
        return [_by_time(op, torch.cat(list(parts), 2))]
    return [_by_time(op, part) for part in parts]


def bidirectional_lstm(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, backward, aux = _both(op, tensors, 39, op.input(41) is not None)
    ahead = _Cell(op, tensors, FORWARD, x, aux).run()
    return _merged(op, [ahead, _Cell(op, tensors, BACKWARD, backward, aux).run(reverse=True)])


# -- RNN ------------------------------------------------------------------------------------------


def _rnn_run(
    op: Op,
    tensors: Tensors,
    base: int,
    x: torch.Tensor,
    aux: torch.Tensor | None = None,
    aux_place: int = 0,
    reverse: bool = False,
) -> torch.Tensor:
    """base: the place of the first weights: of the input, of the state, and the bias."""
    weights, recurrent, bias = (_need(tensors, base + k) for k in range(3))
    given = F.linear(x, weights, bias)
    if aux is not None:
        given = given + F.linear(aux, _need(tensors, aux_place))
    hidden = given.new_zeros(given.shape[1:])
    found: list[torch.Tensor] = []
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        hidden = activate(op, given[t] + F.linear(hidden, recurrent))
        found.append(hidden)
    return torch.stack(found[::-1] if reverse else found)


def rnn(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [_rnn_run(op, tensors, 1, _need(tensors, 0)[None])[0]]


def sequence_rnn(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [_by_time(op, _rnn_run(op, tensors, 1, _by_time(op, _need(tensors, 0))))]


def bidirectional_rnn(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, backward, aux = _both(op, tensors, 9, op.input(10) is not None)
    ahead = _rnn_run(op, tensors, 1, x, aux, 10)
    return _merged(op, [ahead, _rnn_run(op, tensors, 5, backward, aux, 11, reverse=True)])


RECURRENT: dict[str, Function] = {
    "LSTM": lstm,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": sequence_lstm,
    "BIDIRECTIONAL_SEQUENCE_LSTM": bidirectional_lstm,
    "RNN": rnn,
    "UNIDIRECTIONAL_SEQUENCE_RNN": sequence_rnn,
    "BIDIRECTIONAL_SEQUENCE_RNN": bidirectional_rnn,
}
