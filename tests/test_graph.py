"""Element types, stored bytes, and the graph's own bookkeeping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling.errors import InputError, ModelError
from sanderling.format import dump, save
from sanderling.ir import Blockwise, DType, Graph, Model, Op, Quant, Signature, Tensor
from sanderling.ir.packing import decode, encode_strings
from sanderling.ir.verify import verify

F32 = DType.FLOAT32


def test_bounds_of_integer_types() -> None:
    assert DType.INT4.bounds == (-8, 7)
    assert DType.UINT4.bounds == (0, 15)
    assert DType.UINT64.bounds == (0, 2**64 - 1)
    assert DType.INT2.is_integer
    assert not DType.BOOL.is_integer and not DType.BFLOAT16.is_integer


@pytest.mark.parametrize(
    ("raw", "dtype", "shape", "what"),
    [
        (bytes(7), DType.FLOAT32, (2,), r"f32\[2\] takes 8 bytes, the buffer has 7"),
        (bytes(1), DType.INT4, (3,), r"i4\[3\] takes 2 bytes, the buffer has 1"),
        (bytes(8), DType.INT8, (-1, 4), "negative size"),
        (encode_strings(["a", "b"]), DType.STRING, (3,), "takes 3 strings, the buffer has 2"),
        (b"", DType.STRING, (1,), "takes 1 strings, the buffer has 0"),
        (bytes(8), DType.RESOURCE, (), "cannot be of type resource"),
    ],
)
def test_buffers_that_do_not_fit(
    raw: bytes, dtype: DType, shape: tuple[int, ...], what: str
) -> None:
    with pytest.raises(ModelError, match=what):
        decode(memoryview(raw), dtype, shape)


def test_a_buffer_may_be_longer() -> None:
    found = decode(memoryview(np.arange(4, dtype=np.int16).tobytes()), DType.INT16, (1, 3))
    np.testing.assert_array_equal(found, [[0, 1, 2]])


def test_insert_lists_each_tensor_once() -> None:
    graph = Graph()
    x = graph.input("x", F32, (1,))
    y, z = Tensor("y", F32, (1,)), Tensor("z", F32, (1,))
    graph.insert(Op("ADD", [x, x], [y]))
    graph.tensors.append(z)  # the list is open to everyone
    last = graph.insert(Op("ADD", [y, z], [Tensor("sum", F32, (1,))]))
    assert [t.name for t in graph.tensors] == ["x", "y", "z", "sum"]
    graph.erase(last)
    graph.tensors.remove(y)
    graph.tensors.append(Tensor("other", F32, (1,)))
    graph.insert(Op("ABS", [y, None], [z]))
    assert [t.name for t in graph.tensors] == ["x", "z", "sum", "other", "y"]
    graph.prune()
    graph.insert(Op("ABS", [z], [y]))
    assert [t.name for t in graph.tensors] == ["x", "z", "y"]


def chain() -> tuple[Graph, Op, Op]:
    graph = Graph()
    x = graph.input("x", F32, (1,))
    y, z = graph.tensor("y", F32, (1,)), graph.tensor("z", F32, (1,))
    first, second = graph.add("ABS", [x], [y]), graph.add("NEG", [y], [z])
    graph.outputs = [z]
    return graph, first, second


def test_erase_is_refused_while_something_reads() -> None:
    graph, first, second = chain()
    with pytest.raises(ModelError, match=r"ABS 'y': its output 'y' is still read by NEG 'z'"):
        graph.erase(first)
    with pytest.raises(ModelError, match="still read by the outputs of graph 'main'"):
        graph.erase(second)
    assert graph.ops == [first, second] and first.outputs[0].producer is first
    verify(graph)


def test_erase_after_a_replacement() -> None:
    graph, first, second = chain()
    graph.insert(Op("RELU", [first.outputs[0]], second.outputs), before=second)
    graph.erase(second)  # another op computes it
    first.outputs[0].data = np.float32([1])
    graph.erase(first)  # a constant needs no op
    assert [op.name for op in graph.ops] == ["RELU"]
    verify(graph)


def test_a_broken_graph_is_not_written(tmp_path: Path) -> None:
    graph, first, _ = chain()
    graph.ops.remove(first)
    with pytest.raises(ModelError, match="'y' is read, but nothing computes it"):
        save(Model([graph]), tmp_path / "m.tflite")
    assert not list(tmp_path.iterdir())
    assert dump(Model([graph]), verify=False)


def test_a_graph_alone_is_saved_as_a_model() -> None:
    graph, _, _ = chain()
    assert dump(graph) == dump(Model([graph]))
    with pytest.raises(InputError, match="int is not a model"):
        dump(3)  # type: ignore[arg-type]


def calling() -> Model:
    """Two graphs of which one calls the other, a signature, block scales, and a tensor that nothing
    refers to."""
    main, branch = Graph("main"), Graph("branch")
    x, condition = main.input("x", DType.FLOAT32, (1, 32)), main.input("c", DType.BOOL, ())
    scales = main.constant("scales", np.ones((4, 1), np.float16))
    block = Quant(np.zeros(0, np.float32), np.zeros(0, np.int64), block=Blockwise(scales, None, 32))
    weights = main.constant("w", np.ones((4, 32), np.int8), DType.INT4, quant=block)
    y, z = main.tensor("y", DType.FLOAT32, (1, 4)), main.tensor("z", DType.FLOAT32, (1, 4))
    main.tensor("unread", DType.FLOAT32, (1,))
    main.add("FULLY_CONNECTED", [x, weights, None], [y], fused_activation_function="NONE")
    inner = branch.input("inner", DType.FLOAT32, (1, 4))
    branch.outputs = [branch.tensor("made", DType.FLOAT32, (1, 4))]
    branch.add("RELU", [inner], branch.outputs)
    main.add("IF", [condition, y], [z], then_subgraph_index=branch, else_subgraph_index=branch)
    main.outputs = [z]
    model = Model([main, branch], description="calls", metadata={"note": b"1"}, source="here")
    model.signatures = [Signature("serve", main, {"in": x, "if": condition}, {"out": z})]
    return model


def test_a_copy_is_the_same_model_and_its_own() -> None:
    model = calling()
    copy, before = model.copy(), dump(model)
    assert dump(copy) == before and (copy.source, copy.file) == ("here", None)
    graphs = {id(g) for g in copy.graphs}
    assert graphs.isdisjoint(map(id, model.graphs))
    assert {id(g) for op in copy.main.ops for g in op.subgraphs} <= graphs
    assert copy.signatures[0].graph is copy.main
    assert copy.signatures[0].inputs["in"] is copy.main.inputs[0]
    weights = copy.main.find("w")
    assert weights.quant is not None and weights.quant.block is not None
    assert weights.quant.block.scales is copy.main.find("scales")
    assert weights.buffer is model.main.find("w").buffer, "constants share their bytes"
    weights.data = np.zeros((4, 32), np.int8)
    copy.main.outputs = [copy.main.find("y")]
    copy.main.erase(copy.main.ops[1])
    copy.graphs[1].ops[0].attrs["note"] = 1
    copy.metadata.clear()
    assert dump(model) == before, "what is done to the copy is not done to the model"


def test_a_copied_graph_calls_the_same_graphs() -> None:
    graph = calling().main
    copy = graph.copy()
    assert [t.name for t in copy.tensors] == [t.name for t in graph.tensors]
    assert copy.ops[1].subgraphs == graph.ops[1].subgraphs
    assert all(t.producer in copy.ops for op in copy.ops for t in op.outputs)


def test_names_that_are_not_there() -> None:
    graph = Graph()
    for i in range(30):
        graph.tensor(f"layer_{i}/weights", F32, (1,))
    with pytest.raises(KeyError) as near:
        graph.find("layer_3/weight")
    assert "close to it: 'layer_3/weights'" in str(near.value)
    assert str(near.value).count("weights'") <= 10
    with pytest.raises(InputError, match=r"there are: 'layer_0/weights'.* and 20 more"):
        graph.find("?")


def test_mistakes_of_building_are_explained() -> None:
    graph, first, _ = chain()
    with pytest.raises(ModelError, match=r"RELU: its outputs are one tensor(.|\n)*write \[y\]"):
        graph.add("RELU", first.inputs, first.outputs[0])  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"write Model\(\[graph\]\)"):
        Model(graph)  # type: ignore[arg-type]
    first.name = "CONV2D"
    with pytest.raises(ModelError, match="close to it: 'CONV_2D'"):
        dump(graph)


def test_what_things_show() -> None:
    graph, _, _ = chain()
    signature = Signature("serve", graph, {"a": graph.inputs[0]}, {"b": graph.outputs[0]})
    assert repr(Model([graph])) == "<Model in memory: 1 graphs, 2 ops>"
    assert repr(signature) == "<Signature serve(a) -> b>"


class Looked(list[Tensor]):
    """Counts the tensors that are looked at."""

    count = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.count += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.count += len(self)
        return super().__iter__()


def test_large_graphs_are_built_in_linear_time() -> None:
    graph = Graph(tensors=(tensors := Looked()))
    value = graph.input("x", F32, (1,))
    for _ in range(2_000):
        value, last = Tensor("t", F32, (1,)), value
        graph.insert(Op("ABS", [last], [value]))
    assert len(tensors) == 2_001 and graph.tensors is tensors
    assert tensors.count < 10 * len(tensors)
