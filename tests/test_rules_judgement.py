"""Accelerators' rules at work: parts are those of the real partitioner, and the guide's table of
model types comes out of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from sanderling import InputError, dump, load
from sanderling.ir import DType, Graph, Model, Op, Quant
from sanderling.measure import inspect
from sanderling.optimize.model_types import variants
from sanderling.rules import Judgement, find_table, judge, names
from sanderling.rules.model_types import COLUMNS, COUNTED_OUT, TYPES, model_types
from sanderling.rules.nnapi import LEVELS
from sanderling.rules.rule import KINDS
from sanderling.rules.tables import HOMES, MODULES, OURS
from sanderling.runtime.registry import RULES_BEHIND_A_COLON, RULES_ONLY, delegate_names

from .conformance.cases import CASES as ROWS
from .support.rule_cases import LINES, op_graph

F6, F7 = LEVELS["fl6"], LEVELS["fl7"]
STEP = 100  # of the conformance rows, which are judged for mistakes of ours


# -- the engine ----------------------------------------------------------------------------------


def chain(ops: str, dtype: DType = DType.FLOAT32) -> Graph:
    """a: RELU, which all take; z: ZEROS_LIKE, which none takes; q: QUANTIZE of the input."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32 if ops.startswith("q") else dtype, (1, 8))
    for i, letter in enumerate(ops):
        quant = Quant.of(0.1) if dtype is not DType.FLOAT32 else None
        y = graph.tensor(f"t{i}", dtype, (1, 8), quant=quant)
        name = {"a": "RELU", "z": "ZEROS_LIKE", "q": "QUANTIZE"}[letter]
        graph.insert(Op(name, [x], [y], version=2 if dtype is not DType.FLOAT32 else 1))
        x = y
    graph.outputs = [x]
    return graph


def parts(found: Judgement) -> str:
    return " ".join(f"{p.name.split(':')[0]}{len(p.ops)}" for p in found.parts)


@pytest.mark.parametrize(
    "table, ops, dtype, wanted",
    [
        ("gpu", "aaaza", DType.FLOAT32, "gpu3 cpu2"),  # the largest part alone
        ("gpu", "azaaa", DType.FLOAT32, "cpu2 gpu3"),
        ("nnapi:29", "azazazaa", DType.FLOAT32, "nnapi1 cpu1 nnapi1 cpu3 nnapi2"),  # three parts
        ("nnapi:29", "azaza", DType.FLOAT32, "nnapi1 cpu1 nnapi1 cpu1 nnapi1"),
        ("coreml:3", "aazaz", DType.FLOAT32, "coreml2 cpu3"),  # two ops at least
        ("hexagon", "aazazaa", DType.INT8, "hexagon2 cpu3 hexagon2"),
        ("edgetpu", "aazaa", DType.INT8, "edgetpu2 cpu3"),  # up to the first refused op
        ("edgetpu", "qaaza", DType.INT8, "cpu1 edgetpu2 cpu2"),  # behind the CPU's QUANTIZE
        ("xnnpack", "azaza", DType.FLOAT32, "xnnpack1 cpu1 xnnpack1 cpu1 xnnpack1"),
    ],
)
def test_parts(table: str, ops: str, dtype: DType, wanted: str) -> None:
    found = judge(chain(ops, dtype), table)
    assert parts(found) == wanted
    own = sum(len(p.ops) for p in found.parts if p.name == table)
    assert own == found.taken == sum(v.reason is None for v in found.verdicts)


def test_limits_say_so() -> None:
    found = judge(chain("aazaaa"), "gpu").verdicts[0]
    assert found.rule is not None and found.rule.kind == "partition"
    assert "largest" in (found.reason or "") and found.source.endswith("model_builder.cc")
    last = judge(chain("aza", DType.INT8), "edgetpu").verdicts[2]
    assert last.rule is not None and last.rule.kind == "partition"
    assert "ZEROS_LIKE" in (last.reason or "")


def test_what_crosses() -> None:
    whole = judge(chain("aaa"), "gpu")
    assert [c.nbytes for c in whole.crossing] == [32, 32]
    assert not any(c.is_inner for c in whole.crossing)
    split = judge(chain("azaa"), "nnapi:29")
    assert sum(c.is_inner for c in split.crossing) == 2
    assert split.crossing_bytes == 4 * 32
    assert (
        split.cost_us > whole.cost_us * 0 and split.cost_us > judge(chain("a"), "nnapi:29").cost_us
    )
    assert {c.tensor for c in split.crossing} <= {*split.graph.tensors}


def test_float16_weights_are_read_as_they_are() -> None:
    """Who reads a DEQUANTIZE of a constant is asked as if it read the constant; these ops go along
    where all others are taken, and else stay."""
    graph = op_graph("CONV_2D", LINES["CONV_2D"][0], **LINES["CONV_2D"][1])
    conv = graph.ops[0]
    half = graph.constant("half", np.ones((8, 3, 3, 4), np.float16))
    whole = graph.tensor("whole", DType.FLOAT32, (8, 3, 3, 4))
    conv.inputs[1] = whole
    whole.users.append(conv)
    graph.insert(Op("DEQUANTIZE", [half], [whole], version=3), before=conv)
    assert judge(graph, "gpu").is_whole and judge(graph, "coreml:3").is_whole
    y = graph.tensor("y", DType.FLOAT32, (1, 6, 6, 8))
    graph.add("ZEROS_LIKE", graph.outputs, [y])
    graph.outputs = [y]
    found = judge(graph, "gpu")
    assert [v.is_taken for v in found.verdicts] == [False, True, False]


def test_what_is_found_too_late_fails_the_delegate() -> None:
    graph = chain("aa")
    y = graph.tensor("y", DType.FLOAT32, (1, 8))
    graph.add("SUB", [graph.outputs[0], graph.outputs[0]], [y])
    graph.outputs = [y]
    found = judge(graph, "gpu")
    assert not found.taken and "different tensors" in (found.verdicts[2].reason or "")
    assert "fails as a whole" in (found.verdicts[0].reason or "")
    # What is not in a part that is kept is not built.
    z = graph.tensor("z", DType.FLOAT32, (1, 8))
    graph.insert(Op("ZEROS_LIKE", [graph.ops[1].outputs[0]], [z]), before=graph.ops[2])
    graph.ops[3].inputs = [z, z]
    z.users += [graph.ops[3]] * 2
    found = judge(graph, "gpu")
    assert [v.is_taken for v in found.verdicts] == [True, True, False, False]
    assert "largest" in (found.verdicts[3].reason or "")


def test_sizes_that_only_the_run_knows() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (8,))
    where, y = graph.tensor("where", DType.INT64, (0, 1)), graph.tensor("y", DType.FLOAT32, (8,))
    graph.add("RELU", [x], [y])
    graph.add("WHERE", [graph.input("c", DType.BOOL, (8,))], [where])
    graph.outputs = [y, where]
    for name in ("gpu", "nnapi:30", "hexagon", "coreml:3"):
        first = judge(graph, name).verdicts[0]
        assert first.rule is not None and first.rule.kind == "graph", name


@pytest.mark.parametrize("table", MODULES)
def test_every_op_is_judged(table: str) -> None:
    """Rules are about any legal op, one with a scalar or an empty tensor too."""
    scalar = op_graph("PRELU", "x[1,4] #x[]=1 -> x[1,4]", "i8")
    for graph in (scalar, *(row.model().main for row in ROWS[::STEP])):
        assert len(judge(graph, table).verdicts) == len(graph.ops)


def test_names_are_those_of_the_tables() -> None:
    made = {m: [t.name for t in import_module(f"sanderling.rules.{m}").TABLES] for m in HOMES}
    assert made == {module: held.split() for module, held in HOMES.items()}


def test_names() -> None:
    assert {"gpu", "gpu:offline", "nnapi:27", "nnapi:fl7", "hexagon", "coreml:2", "edgetpu"} <= {
        *names()
    }
    for name, said in {
        "npu": "rules are known of: coreml:2",
        "gpuu": "did you mean gpu[?] rules are",
        "edgtpu": "did you mean edgetpu[?]",
        "nnapi:99": "the rules of nnapi are: nnapi:27, .*nnapi:fl7$",
    }.items():
        with pytest.raises(InputError, match=said):
            judge(chain("a"), name)
    assert {n.partition(":")[0] for n in names()} == {*RULES_ONLY, "coreml", "cpu", "gpu"}
    for name in OURS:
        ours = judge(Model([chain("aza")]), name)
        assert ours.taken and ours.table.name == name
    assert find_table("gpu:tflite").rows == find_table("gpu").rows
    behind = {f"{kind}:{level}" for kind, known in RULES_BEHIND_A_COLON.items() for level in known}
    assert behind == {n for n in names() if ":" in n and n.partition(":")[0] in delegate_names()}


@pytest.mark.parametrize("name", [n for n in names() if n not in OURS])
def test_tables_are_whole(name: str) -> None:
    """Every rule is of a known kind, and says something."""
    table = find_table(name)
    rules = [rule for row in table.rows.values() for rule in row] + list(table.every)
    assert table.source and table.rows and all(r.kind in KINDS and r.says for r in rules)


# -- XNNPACK's sparse inference ------------------------------------------------------------------


def sparse_net(zeros: float, kernel: int = 3) -> Graph:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 9, 9, 3))
    first = graph.constant("first", np.ones((8, kernel, kernel, 3), np.float32))
    bias = graph.constant("bias", np.zeros(8, np.float32))
    h = graph.tensor("h", DType.FLOAT32, (1, 4, 4, 8))
    conv = {"padding": "VALID", "dilation_h_factor": 1, "dilation_w_factor": 1}
    graph.add("CONV_2D", [x, first, bias], [h], stride_h=2, stride_w=2, **conv)
    values = (np.arange(64) >= 64 * zeros).astype(np.float32).reshape(8, 1, 1, 8)
    stored, dense = (
        graph.constant("stored", values),
        graph.tensor("dense", DType.FLOAT32, (8, 1, 1, 8)),
    )
    graph.add("DENSIFY", [stored], [dense])
    p, m = graph.tensor("p", DType.FLOAT32, (1, 4, 4, 8)), graph.tensor("m", DType.FLOAT32, (1, 8))
    graph.add("CONV_2D", [h, dense, bias], [p], stride_h=1, stride_w=1, **conv)
    graph.add("MEAN", [p, graph.constant("axes", np.array([1, 2], np.int32))], [m], keep_dims=False)
    graph.outputs = [m]
    return graph


def test_sparse_conditions() -> None:
    assert judge(sparse_net(0.75), "xnnpack:sparse").is_whole
    few = judge(sparse_net(0.5), "xnnpack:sparse").verdicts[0].reason
    assert few is not None and "two thirds" in few and "50%" in few
    start = judge(sparse_net(0.75, kernel=1), "xnnpack:sparse").verdicts[0].reason
    assert start is not None and "starts with" in start
    assert "DENSIFY" in (judge(chain("a"), "xnnpack:sparse").verdicts[0].reason or "")


# -- the guide's table of model types ------------------------------------------------------------


def small_net(fake_quant: bool = False) -> Model:
    """Two convolutions, a pool and a dense layer, with weights that are worth to be quantised."""
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 16, 16, 16))

    def weights(name: str, *shape: int) -> Any:
        return graph.constant(name, rng.normal(size=shape).astype(np.float32))

    def then(op: str, inputs: list[Any], shape: tuple[int, ...], **attrs: Any) -> Any:
        y = graph.tensor(f"{op}{len(graph.ops)}", DType.FLOAT32, shape)
        graph.add(op, inputs, [y], **attrs)
        if not fake_quant or op == "RESHAPE":
            return y
        z = graph.tensor(f"fake{len(graph.ops)}", DType.FLOAT32, shape)
        graph.add("FAKE_QUANT", [y], [z], min=-4.0, max=4.0, num_bits=8, narrow_range=False)
        return z

    same = {"padding": "SAME", "stride_h": 1, "stride_w": 1, "dilation_h_factor": 1,
            "dilation_w_factor": 1, "fused_activation_function": "RELU"}  # fmt: skip
    for i in range(2):
        x = then(
            "CONV_2D",
            [x, weights(f"w{i}", 16, 3, 3, 16), weights(f"b{i}", 16)],
            (1, 16, 16, 16),
            **same,
        )
    x = then(
        "AVERAGE_POOL_2D",
        [x],
        (1, 1, 1, 16),
        padding="VALID",
        stride_h=16,
        stride_w=16,
        filter_height=16,
        filter_width=16,
        fused_activation_function="NONE",
    )
    shape = graph.constant("shape", np.array([1, 16], np.int32))
    x = then("RESHAPE", [x, shape], (1, 16), new_shape=[1, 16])
    x = then("FULLY_CONNECTED", [x, weights("w", 128, 16), weights("b", 128)], (1, 128))
    graph.outputs = [x]
    return load(dump(Model([graph])))


# As the guide has it: float32, float16, dynamic range, integer, quantisation-aware.
GUIDE = {"GPU": "yyyyy", "NNAPI": "ynyyy", "Hexagon": "nnnyy", "Core ML": "yynnn"}


@pytest.fixture(scope="module")
def types() -> dict[str, Model]:
    made = variants(small_net())
    return made | {TYPES[-1]: variants(small_net(fake_quant=True))[TYPES[-1]]}


def test_the_guides_table(types: dict[str, Model]) -> None:
    found = model_types({kind: model.main for kind, model in types.items()})
    for column, marks in GUIDE.items():
        said = "".join("ny"[found[kind][column].taken] for kind in TYPES)
        assert said == marks, column
    # All but one of them follow from the rules alone: the guide is older than the sources there.
    differing = {
        (kind, column)
        for kind, cells in found.items()
        for column, cell in cells.items()
        if cell.taken != cell.by_rules
    }
    assert differing == COUNTED_OUT == {("float16", "NNAPI")}
    refused = [c for cells in found.values() for c in cells.values() if not c.taken]
    assert all(c.reason and c.source for c in refused)


def test_ranges_of_training_are_kept(types: dict[str, Model]) -> None:
    graph = types[TYPES[-1]].main
    assert not any(op.name == "FAKE_QUANT" for op in graph.ops)
    conv = next(op for op in graph.ops if op.name == "CONV_2D")
    assert conv.outputs[0].quantisation.scale[0] == pytest.approx(8 / 255, rel=0.01)


# -- as people see it ----------------------------------------------------------------------------


def test_inspect(types: dict[str, Model]) -> None:
    record = inspect(types["float32"], ["hexagon", "nnapi:29", "reference"])
    hexagon, nnapi = record["accelerators"][0]
    assert record["delegates"][0]["parts"] == [{"delegate": "reference", "ops": 5}]
    said = hexagon["ops"][0]["refusals"][0]
    assert said["source"] == "tflite/delegates/hexagon/utils.cc" and "i8" in said["reason"]
    assert hexagon["taken"] == 0 and hexagon["crossing"]["tensors"] == 0
    assert nnapi["taken"] == 5 and nnapi["crossing"]["inner_tensors"] == 0
    assert nnapi["crossing"]["bytes"] == 4 * (16**3 + 128) and nnapi["crossing"]["estimated_us"] > 0
    with pytest.raises(InputError, match="rules are known of: coreml:2"):
        inspect(types["float32"], ["npu"])
    assert set(COLUMNS.values()) <= {*names()}
