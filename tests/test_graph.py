"""Element types, stored bytes, and the graph's own bookkeeping."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sanderling.errors import ModelError
from sanderling.ir import DType, Graph, Op, Tensor
from sanderling.ir.packing import decode, encode_strings

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


def test_large_graphs_are_built_in_linear_time() -> None:
    graph = Graph()
    value = graph.input("x", F32, (1,))
    start = time.perf_counter()
    for _ in range(20_000):
        value, last = Tensor("t", F32, (1,)), value
        graph.insert(Op("ABS", [last], [value]))
    assert time.perf_counter() - start < 2
    assert len(graph.tensors) == 20_001
