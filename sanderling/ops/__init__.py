"""What each operator means. Importing this package fills OPS, family by family."""

from importlib import import_module

from .base import (
    OPS,
    Cost,
    OpDef,
    Spec,
    State,
    check,
    cost,
    definition,
    infer,
    register_custom,
    support,
)

FAMILIES = ("arith", "unary", "activation", "conv", "matmul", "pool", "shape", "layout",
            "reduce", "index", "image", "fourier", "random_numbers", "sequence", "lstm", "lookup",
            "control", "stablehlo", "custom")  # fmt: skip

for _family in FAMILIES:
    import_module(f".{_family}", __name__)

__all__ = [
    "OPS", "Cost", "OpDef", "Spec", "State", "check", "cost", "definition", "infer",
    "register_custom", "support",
]  # fmt: skip
