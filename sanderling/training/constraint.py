"""Constraints on weights: what training has to keep, as data that combine.

    train(model, data, constraints=[Sparsity(0.8), Clusters(16)])

A constraint sees each weight on its way into the forward pass (`applied`), is told of every step
(`after_step`), and can say of a finished file whether it really holds (`problems`). Constraints are
applied in the order of their list, so that those behind see what those before have done: clusters
of a pruned weight keep its zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..errors import InputError
from ..ir import Array, Model, Op, Tensor

# Operators whose second operand is worth pruning and clustering. Depthwise weights are few and each
# of them matters: zeros and clusters there cost accuracy and save nothing.
PRODUCTS = ("CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")


def weights_of(model: Model, only: Sequence[str] = (), depthwise: bool = False) -> list[Tensor]:
    """The weights of products, as the ops read them; `only`: names, or parts of names."""
    names = (*PRODUCTS, "DEPTHWISE_CONV_2D") if depthwise else PRODUCTS
    found = dict.fromkeys(op.operand(1) for op in model.main.ops if op.name in names)
    chosen = [t for t in found if not only or any(word in t.name for word in only)]
    if not chosen:
        raise InputError(
            f"no weight has a name with {' or '.join(only)}" if only else "there is no product",
            where=f"graph '{model.main.name}'",
            fix="see the names with `sanderling inspect MODEL --tensors`",
        )
    return chosen


class Rows(Protocol):
    """Samples along the first axis: an array, or files that are read when they are looked at."""

    def __len__(self) -> int: ...
    def __getitem__(self, places: Any) -> Array: ...


class Constraint(ABC):
    """What weights, or those of some names, must be when training ends.

    In the order in which they are called: `prepared`, `watch` and `begin` before the first step;
    `applied`, `operand`, `activation` and `penalty` within each forward pass, `after_step` behind
    each step; `finished` and `problems` at the end. Most constraints need `applied` alone.
    """

    def prepared(self, model: Model, data: Sequence[Rows], others: Sequence[Constraint]) -> Model:
        """The model that is trained, where it is not the given one: quantisation starts from a
        result of its own. data: the samples of each input. others: that come before in the list."""
        return model

    def watch(self, model: Model) -> None:  # noqa: B027
        """The twin's own model, whose tensors and ops the other hooks are called with."""

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        """Before the first step: the weights that are trained, and how many steps there will be."""
        self.steps = steps

    @abstractmethod
    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the forward pass sees it; gradients go through it."""

    def operand(self, op: Op, place: int, value: torch.Tensor) -> torch.Tensor:
        """An operand as this op sees it: a weight that `applied` has been asked about, a bias, or a
        result of another op. Gradients go through it."""
        return value

    def computed(self, op: Op, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        """The op's results where the constraint computes it in its own way; None: as always."""
        return None

    def activation(self, tensor: Tensor, value: torch.Tensor) -> torch.Tensor:
        """A result of an op as the ops behind it see it; gradients go through it."""
        return value

    def parameters(self) -> list[torch.nn.Parameter]:
        """What the optimiser learns for this constraint, beside the weights."""
        return []

    def penalty(self) -> torch.Tensor | None:
        """What is added to the loss of this forward pass; None: nothing."""
        return None

    @property
    def complete_at(self) -> float:
        """The share of all steps after which the constraint holds whole: weights of an epoch before
        are not kept as the best."""
        return 0.0

    def after_step(self, weights: dict[Tensor, torch.Tensor], step: int) -> None:  # noqa: B027
        """The optimiser has made a step."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to keep. Tensors by name."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """From a checkpoint."""

    def finished(self, model: Model) -> Model:
        """The trained model as this constraint has it written; called in the order of the list."""
        return model

    @abstractmethod
    def problems(self, model: Model) -> list[str]:
        """What a finished model breaks of it, a sentence each; none if it holds."""


def is_chosen(tensor: Tensor, only: Sequence[str]) -> bool:
    """The second operand of a product, whose name has one of the words."""
    is_weight = any(
        op.name in PRODUCTS and len(op.inputs) > 1 and op.inputs[1] is tensor for op in tensor.users
    )
    return is_weight and (not only or any(word in tensor.name for word in only))


def stored_values(tensor: Tensor) -> Array | None:
    """The values of a constant as the file has them; codes less their zero point."""
    source = tensor
    while source.producer is not None and source.producer.name in ("DEQUANTIZE", "DENSIFY"):
        source = source.producer.operand(0)
    if not source.is_constant:
        return None
    data = np.asarray(source.values)
    if source.quant is None or source.quant.scale.size == 0:
        return data
    shape = [1] * data.ndim
    if source.quant.scale.size > 1:
        shape[source.quant.axis] = -1
    found: Array = data.astype(np.int64) - source.quant.zero_point.reshape(shape)
    return found
