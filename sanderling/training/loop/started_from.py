"""Training that starts from another model than the one whose answers it learns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from ...format import dump
from ...ir import Model, Tensor
from ..constraint import Constraint, Rows


class StartedFrom(Constraint):
    """Train this model, which has the outputs of the given one; that one stays the teacher."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __repr__(self) -> str:  # by which a checkpoint knows the run
        return f"StartedFrom({hashlib.sha256(bytes(dump(self.model))).hexdigest()})"

    def prepared(self, model: Model, data: Sequence[Rows], others: Sequence[Constraint]) -> Model:
        return self.model

    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def problems(self, model: Model) -> list[str]:
        return []
