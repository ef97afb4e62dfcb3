"""One signature of an interpreter's model as a function of named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..format import known_models
from ..ir import Array, Tensor
from .interpreter_checks import keys_text
from .interpreter_details import Details
from .session import OfThisProcess

if TYPE_CHECKING:
    from .interpreter import Interpreter


class SignatureRunner(OfThisProcess):
    """Runs one signature of an Interpreter's model, by the names its author gave."""

    def __init__(
        self, interpreter: Interpreter | None = None, signature_key: str | None = None
    ) -> None:
        if not interpreter:
            raise InputError("None interpreter provided.")
        if not signature_key:
            raise InputError("None signature_key provided.")
        try:
            self._signature = interpreter._session.model.signature(signature_key)
        except KeyError:
            raise InputError(
                f'Invalid signature_key provided: "{signature_key}".',
                fix=keys_text(interpreter._session.model.signatures),
            ) from None
        self._interpreter = interpreter
        self._index = known_models.places_of(self._signature.graph)

    def __call__(self, **arrays: Any) -> dict[str, Array]:
        wanted = self._signature.inputs
        if len(arrays) != len(wanted):
            raise InputError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(wanted)} vs provided {len(arrays)}",
                fix=f"the inputs are {', '.join(wanted)}",
            )
        for name in arrays:
            if name not in wanted:
                raise InputError(
                    f"Invalid Input name ({name}) for SignatureDef",
                    fix=f"the inputs are {', '.join(wanted)}",
                )
        graph, interpreter = self._signature.graph, self._interpreter
        places = {name: self._index[wanted[name]] for name in arrays}
        for name, value in arrays.items():
            interpreter._resize(graph, places[name], np.shape(value), False)
        interpreter._allocate(graph)
        for name, value in arrays.items():
            interpreter._set(graph, places[name], value)
        interpreter._invoke(graph)
        return {
            name: interpreter._value(graph, self._index[tensor])
            for name, tensor in sorted(self._signature.outputs.items())
        }

    def get_input_details(self) -> dict[str, Details]:
        """A dict for each input by the signature's names, as Interpreter.get_input_details."""
        return self._named_details(self._signature.inputs)

    def get_output_details(self) -> dict[str, Details]:
        """A dict for each output by the signature's names."""
        return self._named_details(self._signature.outputs)

    def _named_details(self, tensors: Mapping[str, Tensor]) -> dict[str, Details]:
        graph = self._signature.graph
        return {
            n: self._interpreter._details(graph, self._index[tensors[n]]) for n in sorted(tensors)
        }
