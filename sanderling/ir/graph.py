"""The graph: ops hold Tensor objects, tensors know their producer and users.

Integer indices exist only in the file format. A graph is changed through its own methods
(`insert`, `erase`, `replace_uses`), which keep producers and users true.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import MissingNameError, ModelError
from .packing import decode, densify, encode
from .types import Array, DType, Quant, Shape, Sparsity

if TYPE_CHECKING:
    from ..runtime.session import Session

CUSTOM = "custom."


@dataclass(eq=False)
class ExternalData:
    """Where a constant lives when it is in a file beside the model."""

    group: str
    offset: int
    length: int
    packing: str = ""


class Buffer:
    """Constant bytes. Tensors that share a Buffer object share its bytes in the file."""

    __slots__ = ("external", "raw")

    def __init__(self, raw: memoryview, external: ExternalData | None = None) -> None:
        self.raw = raw
        self.external = external

    def __len__(self) -> int:
        return self.raw.nbytes

    def __repr__(self) -> str:
        return f"<Buffer: {len(self)} bytes>"


class Tensor:
    """A value in a graph: constant when it has a buffer, else computed or fed."""

    __slots__ = (
        "_decoded", "buffer", "dtype", "has_rank", "is_variable", "name", "producer", "quant",
        "shape", "signature", "sparsity", "users", "variant_types",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: Iterable[int] = (),
        *,
        data: npt.ArrayLike | None = None,
        buffer: Buffer | None = None,
        quant: Quant | None = None,
        signature: Iterable[int] | None = None,
        sparsity: Sparsity | None = None,
        is_variable: bool = False,
        has_rank: bool = True,
        variant_types: tuple[Tensor, ...] = (),
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape: Shape = tuple(shape)
        self.signature: Shape | None = None if signature is None else tuple(signature)
        self.buffer = buffer
        self.quant = quant
        self.sparsity = sparsity
        self.is_variable = is_variable
        self.has_rank = has_rank
        self.variant_types = variant_types
        self.producer: Op | None = None
        self.users: list[Op] = []
        self._decoded: tuple[tuple[Any, ...], Array] | None = None
        if data is not None:
            self.data = np.asarray(data)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type_text}"

    @property
    def type_text(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.signature or self.shape))}]"

    @property
    def is_constant(self) -> bool:
        return self.buffer is not None

    @property
    def is_dynamic(self) -> bool:
        """The file leaves a dimension open (its `shape` then holds a stand-in)."""
        return self.signature is not None and -1 in self.signature

    @property
    def nbytes(self) -> int:
        """Bytes the values take; for a constant, what the file stores."""
        return len(self.buffer) if self.buffer is not None else self.dtype.nbytes(self.shape)

    @property
    def data(self) -> Array | None:
        """The constant as an array (dense, unpacked, read-only); None if not constant."""
        if self.buffer is None:
            return None
        # A pass may set the buffer or the shape by itself: the array is only true of its origin.
        made_of = (self.buffer, self.dtype, self.shape, self.sparsity)
        if self._decoded is None or self._decoded[0] != made_of:
            self._decoded = made_of, self._decode(self.buffer)
        return self._decoded[1]

    @data.setter
    def data(self, value: npt.ArrayLike) -> None:
        array = np.asarray(value, self.dtype.numpy)
        self.shape = array.shape
        self.buffer = Buffer(encode(array, self.dtype))
        self.sparsity = None

    @property
    def values(self) -> Array:
        """The constant as an array, where `data` may be None: ModelError if it is not constant."""
        if self.buffer is None:
            raise ModelError(
                "it is computed or fed, and a constant is needed here",
                where=f"tensor '{self.name}'",
                fix="make it a constant: graph.constant(name, array)",
            )
        return cast(Array, self.data)

    @property
    def quantisation(self) -> Quant:
        """The quantisation, where `quant` may be None: ModelError if it has none."""
        if self.quant is None:
            raise ModelError(
                "it has no scale, and codes are needed here",
                where=f"tensor '{self.name}'",
                fix="give it quant=Quant.of(scale, zero_point)",
            )
        return self.quant

    def copy(self) -> Tensor:
        """The same tensor for another graph: buffer and decoded values are shared."""
        twin = Tensor(
            self.name,
            self.dtype,
            self.shape,
            buffer=self.buffer,
            quant=self.quant,
            signature=self.signature,
            sparsity=self.sparsity,
            is_variable=self.is_variable,
            has_rank=self.has_rank,
            variant_types=self.variant_types,
        )
        twin._decoded = self._decoded
        return twin

    def _decode(self, buffer: Buffer) -> Array:
        if buffer.external is not None and not buffer.raw.nbytes:
            raise ModelError(
                f"the values are in external file group '{buffer.external.group}'",
                where=f"tensor '{self.name}'",
                fix="put the file beside the model, or load with external={group: path}",
            )
        if self.sparsity is None:
            return decode(buffer.raw, self.dtype, self.shape)
        if not self.dtype.is_fixed_size:
            raise ModelError(
                f"elements of type {self.dtype.short} cannot be sparse",
                where=f"tensor '{self.name}'",
                fix="the file is damaged; export the model again",
            )
        stored = len(buffer) * 8 // self.dtype.bits
        values = decode(buffer.raw, self.dtype, (stored,))
        dense = densify(values, self.sparsity, self.shape)
        dense.flags.writeable = False
        return dense


class Op:
    """One operator: what it is called, what it reads, what it writes, how it is set.

    name is the schema's (CONV_2D), or `custom.` and the custom code. attrs holds the fields of
    the options table with enums as strings and subgraphs as Graph objects; a custom operator
    has its raw options under "options". An absent optional input is None.
    """

    __slots__ = (
        "attrs", "debug_index", "inputs", "intermediates", "mutating", "name", "options",
        "outputs", "version",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        inputs: Iterable[Tensor | None],
        outputs: Iterable[Tensor],
        attrs: Mapping[str, Any] | None = None,
        *,
        version: int = 1,
        options: str = "",
        intermediates: Iterable[Tensor] = (),
        mutating: Sequence[bool] = (),
        debug_index: int = -1,
    ) -> None:
        self.name = name
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.version = version
        self.options = options  # the options table it was read from; "" lets the writer choose
        self.intermediates = list(intermediates)
        self.mutating = list(mutating)
        self.debug_index = debug_index

    def __repr__(self) -> str:
        outs = ", ".join(f"%{t.name}" for t in self.outputs)
        ins = ", ".join("none" if t is None else f"%{t.name}" for t in self.inputs)
        return f"{outs} = {self.name}({ins})"

    @property
    def is_custom(self) -> bool:
        return self.name.startswith(CUSTOM)

    @property
    def where(self) -> str:
        """How messages name this op."""
        return f"{self.name} '{self.outputs[0].name}'" if self.outputs else self.name

    def copy(
        self,
        inputs: Iterable[Tensor | None],
        outputs: Iterable[Tensor],
        intermediates: Iterable[Tensor] = (),
    ) -> Op:
        """The same operator on other tensors."""
        return Op(
            self.name,
            inputs,
            outputs,
            self.attrs,
            version=self.version,
            options=self.options,
            intermediates=intermediates,
            mutating=self.mutating,
            debug_index=self.debug_index,
        )

    def input(self, index: int) -> Tensor | None:
        """The input at this place; None where it is absent, by omission or explicitly."""
        return self.inputs[index] if index < len(self.inputs) else None

    def operand(self, index: int) -> Tensor:
        """The input at this place, where `input` may be None: ModelError if it is absent."""
        if (tensor := self.input(index)) is None:
            raise ModelError(
                f"it has no operand {index}",
                where=self.where,
                fix="give the op all operands that its kind needs",
            )
        return tensor

    @property
    def subgraphs(self) -> list[Graph]:
        """Graphs this op calls."""
        flat = (v if isinstance(v, list) else [v] for v in self.attrs.values())
        return [g for values in flat for g in values if isinstance(g, Graph)]


class _Listed:
    """A graph's list of tensors as a set.

    The list is anyone's to change. What it has gained at its end since the last look is added to
    the set; after any other change that shows (another list, a shorter one, a last tensor that
    has moved) the set is made anew.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.count = 0  # tensors looked at, and the last of them
        self.last: Tensor | None = None
        self.known: set[Tensor] = set()

    def of(self, tensors: list[Tensor]) -> set[Tensor]:
        count = self.count
        longer = tensors is self.tensors and len(tensors) >= count
        if not (longer and (count == 0 or tensors[count - 1] is self.last)):
            self.known, count = set(), 0
        self.known.update(tensors[count:])
        self.tensors, self.count = tensors, len(tensors)
        self.last = tensors[-1] if tensors else None
        return self.known


@dataclass(eq=False)
class Graph:
    """A list of ops in an order that can be executed, with inputs and outputs."""

    name: str = "main"
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    # Every tensor, in file order: an Interpreter's tensor index is a place in this list.
    tensors: list[Tensor] = field(default_factory=list)
    debug_index: int = -1
    _listed: _Listed = field(default_factory=_Listed, init=False, repr=False)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.ops)} ops, {len(self.tensors)} tensors>"

    # -- building ---------------------------------------------------------------------------

    def tensor(self, name: str, dtype: DType, shape: Iterable[int] = (), **more: Any) -> Tensor:
        """Make a tensor that belongs to this graph."""
        tensor = Tensor(name, dtype, shape, **more)
        self.tensors.append(tensor)
        return tensor

    def input(self, name: str, dtype: DType, shape: Iterable[int], **more: Any) -> Tensor:
        """Make a tensor that is fed: it is appended to the graph's inputs. For an open dimension
        give `signature=(-1, 4)` beside a `shape` that holds a stand-in."""
        tensor = self.tensor(name, dtype, shape, **more)
        self.inputs.append(tensor)
        return tensor

    def constant(
        self, name: str, data: npt.ArrayLike, dtype: DType | None = None, **more: Any
    ) -> Tensor:
        """Make a constant. The element type is the array's; give dtype for one that NumPy lacks
        (INT4), and quant=Quant.of(scale, zero_point) for integers that stand for reals."""
        array = np.asarray(data)
        return self.tensor(name, dtype or DType.of(array.dtype), array.shape, data=array, **more)

    def add(
        self, name: str, inputs: Iterable[Tensor | None], outputs: Iterable[Tensor], **attrs: Any
    ) -> Op:
        """Append an op; its attributes are the fields of the schema's options table."""
        for given, what in ((inputs, "inputs"), (outputs, "outputs")):
            if isinstance(given, Tensor):
                raise ModelError(
                    f"its {what} are one tensor, not a list",
                    where=name,
                    fix=f"write [{given.name}]",
                )
        return self.insert(Op(name, inputs, outputs, attrs))

    def insert(self, op: Op, before: Op | None = None) -> Op:
        """Put an op into the list (at the end, or before another) and register its uses."""
        place = len(self.ops) if before is None else self.ops.index(before)
        self.ops.insert(place, op)
        self.enlist(*tensors_there(op.inputs), *op.outputs, *op.intermediates)
        link(op)
        return op

    def enlist(self, *tensors: Tensor) -> None:
        """Put the tensors that are not there yet into the graph's list of tensors."""
        known = self._listed.of(self.tensors)
        for tensor in tensors:
            if tensor not in known:
                known.add(tensor)
                self.tensors.append(tensor)

    def append(self, op: Op) -> None:
        """Add an op whose tensors are all in the graph already: no search for new ones."""
        self.ops.append(op)
        link(op)

    # -- changing ---------------------------------------------------------------------------

    def erase(self, op: Op) -> None:
        """Take an op out. What it computes must have no reader left: replace it before, or give
        it another producer or a constant's values. ModelError names the readers."""
        self._check_unread(op)
        self.ops.remove(op)
        for tensor in tensors_there(op.inputs):
            tensor.users.remove(op)
        for tensor in op.outputs:
            if tensor.producer is op:
                tensor.producer = None

    def _check_unread(self, op: Op) -> None:
        """Raise ModelError if something still reads what only this op computes."""
        for tensor in op.outputs:
            if tensor.producer is not op or tensor.is_constant:
                continue
            readers = [user.where for user in dict.fromkeys(tensor.users) if user is not op]
            if any(tensor is out for out in self.outputs):
                readers.append(f"the outputs of graph '{self.name}'")
            if readers:
                raise ModelError(
                    f"its output '{tensor.name}' is still read by {_some(readers, 5, str)}",
                    where=op.where,
                    fix="first graph.replace_uses(old, new), or insert another op that writes it",
                )

    def replace_uses(self, old: Tensor, new: Tensor) -> None:
        """Let every reader of `old`, and the graph's outputs, read `new` instead."""
        for op in list(dict.fromkeys(old.users)):
            for index, tensor in enumerate(op.inputs):
                if tensor is old:
                    self.set_input(op, index, new)
        self.outputs = [new if t is old else t for t in self.outputs]

    def set_input(self, op: Op, index: int, tensor: Tensor | None) -> None:
        """One operand of one op becomes another tensor, or absent with None. Tensors keep their
        lists of users; never assign to op.inputs."""
        before = op.inputs[index]
        if before is not None:
            before.users.remove(op)
        op.inputs[index] = tensor
        if tensor is not None:
            tensor.users.append(op)

    def prune(self) -> int:
        """Drop tensors that nothing refers to, and return how many."""
        keep = {id(t) for t in (*self.inputs, *self.outputs)}
        for op in self.ops:
            keep.update(id(t) for t in (*op.inputs, *op.outputs, *op.intermediates))
        for tensor in self.tensors:
            block = tensor.quant.block if tensor.quant else None
            if block is not None and id(tensor) in keep:
                keep.update((id(block.scales), id(block.zero_points)))
        before = len(self.tensors)
        self.tensors = [t for t in self.tensors if id(t) in keep]
        return before - len(self.tensors)

    def copy(self) -> Graph:
        """Make a graph that can be changed without this one. Constants share their buffers, and
        the graphs that ops call are the same objects."""
        return _whole_copy(self)[0]

    # -- looking ----------------------------------------------------------------------------

    @property
    def constants(self) -> Iterator[Tensor]:
        return (t for t in self.tensors if t.is_constant)

    def find(self, name: str) -> Tensor:
        """The tensor with this name; the error lists the closest."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise MissingNameError(
            f"no tensor '{name}' in graph '{self.name}'; "
            f"{closest(name, [t.name for t in self.tensors])}"
        )


@dataclass(eq=False)
class Signature:
    """A named entry point: user-facing names for a graph's inputs and outputs."""

    key: str
    graph: Graph
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def feeds_all(self) -> bool:
        """Whether it names every input of its graph, which can run on its arrays alone then."""
        return set(self.inputs.values()) == set(self.graph.inputs)

    def __repr__(self) -> str:
        return f"<Signature {self.key}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"


@dataclass(eq=False)
class Model:
    """Everything a .tflite file says."""

    graphs: list[Graph] = field(default_factory=lambda: [Graph()])
    signatures: list[Signature] = field(default_factory=list)
    metadata: dict[str, bytes | memoryview] = field(default_factory=dict)
    description: str = ""
    version: int = 3
    # Things in the file that this schema does not know and a save would lose.
    unknown: list[str] = field(default_factory=list)
    # The file kept its weights behind the flatbuffer; a save does the same.
    weights_outside: bool = False
    source: str = ""
    # The bytes it was read from, if it was from those alone.
    file: memoryview | None = field(default=None, repr=False)
    # Files that are packed behind the model, such as the names of its classes.
    files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.graphs, Graph):
            raise ModelError(
                "its graphs are one graph, not a list", where="Model", fix="write Model([graph])"
            )

    def __repr__(self) -> str:
        ops = sum(len(g.ops) for g in self.graphs)
        return f"<Model {self.source or 'in memory'}: {len(self.graphs)} graphs, {ops} ops>"

    @property
    def main(self) -> Graph:
        return self.graphs[0]

    def compile(
        self,
        delegates: Iterable[Any] = (),
        threads: int | None = None,
        *,
        settings: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Session:
        """A session that runs this model; see Session for the options. settings: a file that
        `sanderling tune` wrote; what is given here wins over what it says."""
        from ..runtime.session import Session  # the one look upwards, for the sake of users

        if settings is None:
            return Session(self, delegates, threads, **options)
        from ..runtime.settings_file import read_settings

        kept = read_settings(settings)
        kept.warn_of_another(self.source)
        own = kept.options | dict(options.pop("options", None) or {})
        return Session(
            self, delegates or kept.delegates, threads or kept.threads, options=own, **options
        )

    def copy(self) -> Model:
        """Make a model that can be changed without this one. Constants share their buffers."""
        copies = {graph: _whole_copy(graph) for graph in self.graphs}
        graphs = {graph: made for graph, (made, _) in copies.items()}
        for op in (op for made in graphs.values() for op in made.ops):
            op.attrs = {name: _calling(value, graphs) for name, value in op.attrs.items()}
        signatures = [_signature_copy(s, *copies[s.graph]) for s in self.signatures]
        return Model(
            list(graphs.values()),
            signatures,
            dict(self.metadata),
            self.description,
            self.version,
            list(self.unknown),
            self.weights_outside,
            self.source,
            files=dict(self.files),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model by the bytes of its file: graphs are webs of references."""
        from ..format import dump

        return _from_bytes, (dump(self), self.source)

    def signature(self, key: str | None = None) -> Signature:
        """The entry point with this key, or the only one; the error lists what there is."""
        if key is None and len(self.signatures) == 1:
            return self.signatures[0]
        for signature in self.signatures:
            if signature.key == key:
                return signature
        names = _some(s.key for s in self.signatures)
        asked = f"no signature '{key}'" if key else "the model has no single signature"
        raise MissingNameError(f"{asked}; there are: {names}")


def reachable(graphs: Iterable[Graph]) -> list[Graph]:
    """These graphs and all that they call, each once, what is called before who calls it."""
    found: dict[Graph, None] = {}
    entered: set[Graph] = set()
    waiting = list(graphs)
    while waiting:
        graph = waiting[-1]
        inner = [] if graph in entered else [g for op in graph.ops for g in op.subgraphs]
        entered.add(graph)
        missing = [g for g in inner if g not in entered]
        waiting += missing
        if not missing:
            found[waiting.pop()] = None
    return list(found)


Twins = dict[Tensor, Tensor]  # tensors of one graph -> their copies in another


def copy_graph(
    graph: Graph, ops: Iterable[Op], inputs: Iterable[Tensor], outputs: Iterable[Tensor]
) -> tuple[Graph, Twins]:
    """Make a graph of its own of these ops; constants share their buffers with the original."""
    twins: Twins = {}
    made = Graph(graph.name)

    def twin(tensor: Tensor) -> Tensor:
        if tensor not in twins:
            twins[tensor] = made_twin = tensor.copy()
            made.tensors.append(made_twin)
            made_twin.quant = _copy_block(tensor.quant, twin)
        return twins[tensor]

    made.inputs = [twin(t) for t in inputs]
    for op in ops:
        made.append(
            op.copy(
                [t and twin(t) for t in op.inputs],
                [twin(t) for t in op.outputs],
                [twin(t) for t in op.intermediates],
            )
        )
    made.outputs = [twin(t) for t in outputs]
    return made, twins


def _copy_block(quant: Quant | None, twin: Callable[[Tensor], Tensor]) -> Quant | None:
    """Blockwise scales are tensors too: they move with the tensor they describe."""
    if quant is None or quant.block is None:
        return quant
    old = quant.block
    block = replace(
        old,
        scales=old.scales and twin(old.scales),
        zero_points=old.zero_points and twin(old.zero_points),
    )
    return replace(quant, block=block)


def _whole_copy(graph: Graph) -> tuple[Graph, Twins]:
    """Copy a graph with all its tensors, also those that nothing refers to, in their order."""
    made, twins = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    twins |= {t: t.copy() for t in graph.tensors if t not in twins}
    made.tensors = [twins[t] for t in graph.tensors]
    made.debug_index = graph.debug_index
    return made, twins


def _calling(value: Any, graphs: Mapping[Graph, Graph]) -> Any:
    """An attribute with the copies of the graphs that it names."""
    if isinstance(value, list):
        return [_calling(one, graphs) for one in value]
    return graphs.get(value, value) if isinstance(value, Graph) else value


def _signature_copy(signature: Signature, graph: Graph, twins: Twins) -> Signature:
    ends = (signature.inputs, signature.outputs)
    inputs, outputs = ({name: twins[t] for name, t in end.items()} for end in ends)
    return Signature(signature.key, graph, inputs, outputs)


def _from_bytes(content: bytes, source: str) -> Model:
    from ..format import load

    made = load(content)
    made.source = source
    return made


def link(op: Op) -> None:
    """Enter an op's uses into its tensors."""
    for tensor in tensors_there(op.inputs):
        tensor.users.append(op)
    for tensor in op.outputs:
        tensor.producer = op


def tensors_there(tensors: Iterable[Tensor | None]) -> Iterator[Tensor]:
    """The tensors without the places that are empty: an operand may be left out."""
    return (t for t in tensors if t is not None)


def _some(names: Iterable[str], most: int = 20, show: Callable[[str], str] = repr) -> str:
    listed = list(names)
    more = f", and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(map(show, listed[:most])) + more if listed else "none"


def closest(name: str, known: Sequence[str], most: int = 10) -> str:
    """For messages: the names that look like the one asked for, else the first ones there are."""
    lowered = {k.lower(): k for k in reversed(known)}
    near = get_close_matches(str(name).lower(), lowered, most, 0.6)
    holding = [k for low, k in lowered.items() if len(str(name)) > 2 and str(name).lower() in low]
    found = list(dict.fromkeys([*(lowered[n] for n in near), *holding]))[:most]
    return f"close to it: {_some(found)}" if found else f"there are: {_some(known, most)}"
