"""Clustering: few values in each weight, with and without samples and training; the verb."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Model

from .support.command_line import F32, INT8, answer, call

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.cluster import Clustering, check_clustered, cluster  # noqa: E402
from sanderling.training.constraint import stored_values, weights_of  # noqa: E402
from sanderling.training.constraints.clusters import Clusters, kmeans, nearest, starting_values  # noqa: E402
from sanderling.training.differentiable.twin import Twin  # noqa: E402
from sanderling.training.loop.train import Schedule  # noqa: E402
from sanderling.training.without_training.one_shot_clusters import _shorter  # noqa: E402
from sanderling.training.without_training.value_table import Table, priced  # noqa: E402

DATA = files("sanderling") / "data"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(DATA / "digits_f32.tflite")


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    with np.load(str(DATA / "digits_test.npz")) as found:
        images = found["images"].reshape(-1, 8, 8, 1).astype(np.float32) / 16
        return images, found["labels"].astype(np.int64)


def _scores(model: Model, images: Array) -> Array:
    with torch.no_grad():
        return np.asarray(Twin(model)(images)[0].numpy())


# -- values ---------------------------------------------------------------------------------------


def test_the_nearest_value() -> None:
    rows = torch.tensor([[0.1, 0.9, -3.0], [5.0, 2.4, 2.6]])
    table = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    assert table.gather(1, nearest(rows, table)).tolist() == [[0, 1, 0], [3, 2, 3]]


def test_where_values_begin() -> None:
    elements = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 10.0])
    assert starting_values(elements, 3, "linear", 0).tolist() == [0, 5, 10]
    assert starting_values(elements, 2, "density", 0).tolist() == [0, 1.75]
    random = starting_values(elements, 4, "random", 1)
    assert len(random) == 4 and 0 <= random.min() <= random.max() <= 10
    assert sorted(starting_values(elements, 4, "kmeans++", 0).tolist()) == [0, 1, 2, 10]


def test_weights_of_elements_draw_values() -> None:
    elements = np.array([0.0, 1.0, 10.0, 11.0])
    plain = kmeans(elements, 2, 0)
    drawn = kmeans(elements, 2, 0, weights=np.array([1.0, 9.0, 1.0, 1.0]))
    assert plain.tolist() == [0.5, 10.5] and drawn.tolist() == pytest.approx([0.9, 10.5])


@pytest.mark.parametrize("start", ["kmeans++", "linear", "density", "random", "grid"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_starts(model: Model, start: str, per_channel: bool) -> None:
    made, report = cluster(model, start=start, per_channel=per_channel, count=7)
    assert report.problems == []
    rule = Clusters(7, per_channel=per_channel)
    assert rule.problems(made) == [] != rule.problems(model)


def test_gradients_reach_values() -> None:
    """Two values of one weight: the gradients of a value's elements are added up at it."""
    model = sanderling.load(DATA / "digits_f32.tflite")
    tensor = weights_of(model)[0]
    rule = Clusters(2, keep_zeros=False)
    weight = torch.from_numpy(np.array(tensor.values)).requires_grad_()
    rule.begin({tensor: weight}, 1)
    rule.applied(tensor, weight).sum().backward()
    (values,) = rule.parameters()
    size = float(weight.detach().square().mean().sqrt())
    assert float(values.grad.sum()) == pytest.approx(weight.numel() * size, rel=1e-4)
    assert bool((weight.grad == 1).all())


def test_prices_keep_errors_within_the_slack() -> None:
    """Few values are used more, so that an element needs fewer bits; the errors say how far."""
    rng = np.random.default_rng(0)
    row = torch.from_numpy(rng.normal(size=4096).astype(np.float32))
    worth = torch.from_numpy(rng.uniform(0.1, 2.0, 4096).astype(np.float32))
    values = torch.from_numpy(kmeans(row.numpy(), 32, 0, weights=worth.numpy()))
    plain = Table(values[None])
    bits, errors = [_entropy(plain, row, worth)], [plain.error(row[None], worth[None])]
    for slack in (0.2, 1.0):
        table = priced(values, row, worth, slack, moves=True)
        bits.append(_entropy(table, row, worth))
        errors.append(table.error(row[None], worth[None]))
        assert errors[-1] <= (1 + slack) * errors[0]
    assert bits[0] > bits[1] + 0.05 > bits[2] + 0.2 and errors[0] < errors[2]


def test_prices_without_any_error() -> None:
    values = torch.tensor([0.0, 1.0, 2.0])
    table = priced(values, torch.tensor([1.0, 2.0, 1.0]), torch.ones(3), 0.5, moves=True)
    assert table.values.tolist() == [values.tolist()]
    assert table.chosen(torch.tensor([[1.2]]), torch.ones(1, 1)).tolist() == [[1.0]]
    empty = priced(values, torch.zeros(0), torch.zeros(0), 0.5, moves=True)
    assert empty.values.tolist() == [values.tolist()]


def _entropy(table: Table, row: torch.Tensor, worth: torch.Tensor) -> float:
    """Bits of an element, if each value has as many as its number tells."""
    counts = np.unique(table.chosen(row[None], worth[None]).numpy(), return_counts=True)[1]
    return float(-(counts / counts.sum() * np.log2(counts / counts.sum())).sum())


def test_biases_lose_bytes_that_errors_hide() -> None:
    biases = torch.tensor([1.2345678, -3.3333333, 100.71, 0.0])
    errors = torch.tensor([1.0, 1e-3, 1e-9, 1.0])
    made = _shorter(biases, errors)
    kept = [len(b.tobytes().lstrip(b"\0")) for b in made.numpy()]
    assert kept == [2, 3, 4, 0] and bool(((made - biases).abs() <= 0.1 * errors).all())


# -- the function ---------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "16 values": {},
    "trained": {"count": 6, "schedule": Schedule(epochs=2, rate=1e-3)},
    "a channel's own": {"count": 4, "per_channel": True},
    "without zeros": {"keep_zeros": False},
    "with slack": {"count": 24, "slack": 0.5},
    "with slack, a channel's own": {"count": 6, "slack": 0.5, "per_channel": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_cluster(model: Model, digits: tuple[Array, Array], way: str) -> None:
    made, report = cluster(model, digits[0], labels=digits[1], **WAYS[way])
    assert report.problems == [] and report.compared["agreement"]["value"] > 0.9
    assert report.zipped_after < 0.35 * report.zipped_before
    assert all(r.values < r.values_before for r in report.layers)
    assert (
        check_clustered(made, Clustering(**{k: v for k, v in WAYS[way].items() if k != "schedule"}))
        == []
    )


def test_samples_bring_it_nearer(model: Model, digits: tuple[Array, Array]) -> None:
    images = digits[0]
    plain, _ = cluster(model, count=4)
    made, _ = cluster(model, images[:200], count=4, held_out=0.0)
    wanted = _scores(model, images[200:])
    apart = [float(np.abs(_scores(m, images[200:]) - wanted).mean()) for m in (made, plain)]
    assert apart[0] < 0.7 * apart[1]


@pytest.mark.parametrize("samples", [0, 200])
def test_slack_makes_the_zipped_file_smaller(
    model: Model, digits: tuple[Array, Array], samples: int
) -> None:
    images = digits[0][:samples] if samples else None
    sizes = [
        cluster(model, images, count=32, slack=slack, held_out=0.0)[1].zipped_after
        for slack in (0.0, 0.5)
    ]
    assert sizes[1] < sizes[0]


def test_slack_on_a_grid_keeps_the_grid(model: Model, digits: tuple[Array, Array]) -> None:
    _, report = cluster(model, digits[0][:64], storage="int4", slack=0.5)
    assert report.problems == []


def test_zeros_stay(model: Model, digits: tuple[Array, Array]) -> None:
    pruned, _ = sanderling.prune(model, digits[0][:64], sparsity=0.6)
    made, report = cluster(pruned, digits[0][:64], count=8)
    before, after = ([stored_values(t) == 0 for t in weights_of(m)] for m in (pruned, made))
    assert all(np.array_equal(a & b, a) for a, b in zip(before, after, strict=True))
    assert report.zeros >= 0.59


@pytest.mark.parametrize(("storage", "kind"), [("int4", DType.INT4), ("int2", DType.INT2)])
def test_values_stored_as_codes(
    model: Model, digits: tuple[Array, Array], storage: str, kind: DType
) -> None:
    made, report = cluster(model, digits[0], storage=storage)
    assert report.problems == [] and report.size_after < 0.35 * report.size_before
    codes = [op.operand(0) for op in made.main.ops if op.name == "DEQUANTIZE"]
    assert len(codes) == 3 and all(t.dtype is kind for t in codes)
    again = sanderling.load(bytes(sanderling.dump(made)))  # type: ignore[arg-type]
    found = next(
        iter(again.compile(threads=1).run({made.main.inputs[0].name: digits[0][:1]}).values())
    )
    assert np.allclose(found, _scores(made, digits[0][:1]), atol=1e-5)
    assert report.compared["agreement"]["value"] > (0.9 if storage == "int4" else 0.5)


def test_as_few_values_as_the_target_allows(
    model: Model, digits: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sanderling.training.cluster.ERRORS", [1e-3, 1e-2, 0.5])
    _, report = cluster(model, digits[0], labels=digits[1], max_drop=0.03)
    assert report.target["met"] and sum(t.chosen for t in report.trials) == 1
    counts = report.settings["counts"]
    assert set(counts) == {"w0", "w1", "w2"} and max(counts.values()) < 128
    assert any(not t.meets for t in report.trials)


# -- the verb -------------------------------------------------------------------------------------


def test_the_verb(tmp_path: Path, digits: tuple[Array, Array]) -> None:
    out, page, rows = (tmp_path / n for n in ("o.tflite", "o.html", "d.npz"))
    np.savez(rows, x=digits[0], labels=digits[1])
    record = answer(
        "cluster", F32, "-o", out, "-k", 8, "--data", rows, "--labels", "labels", "--report", page
    )
    assert record["schema"] == "sanderling.cluster/1" and record["problems"] == []
    assert [r["values"] <= 8 for r in record["layers"]] == [True] * 3
    assert "Clustering of" in page.read_text()
    assert "holds" in call("cluster", out, "--check", "-k", 8).stdout
    assert "has" in call("cluster", out, "--check", "-k", 4, status=1).stdout


REFUSED: dict[str, tuple[list[object], str]] = {
    "one value": (["-k", 1], "1 clusters|2 or more"),
    "no such start": (["--start", "magic"], "cannot start from 'magic'|density"),
    "a negative slack": (["--slack", -1], "a slack of -1|0.5 lets"),
    "no such storage": (["--storage", "int3"], "no storage 'int3'|int4"),
    "no such weight": (["--only", "nothing"], "no weight has a name with nothing"),
    "no samples": (["--epochs", 1], "there are no samples"),
    "no target": (["--max-drop", 0.1], "there are no samples"),
    "labels of nothing": (["--labels", "labels"], "--labels|give --data too"),
    "a share beside no labels": (["--mix", 0.5], "--mix|needs labels"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_options(tmp_path: Path, what: str) -> None:
    options, message = REFUSED[what]
    out = tmp_path / "o.tflite"
    result = call("cluster", F32, "-o", out, *options, status=2)
    for word in message.split("|"):
        assert word in result.stderr, result.stderr
    assert not out.exists() and "Traceback" not in result.stderr


def test_a_target_that_nothing_judges(model: Model, digits: tuple[Array, Array]) -> None:
    with pytest.raises(InputError, match="no samples are held out"):
        cluster(model, digits[0][:32], max_drop=0.01, held_out=0.0)
    with pytest.raises(InputError, match="labels need the samples"):
        cluster(model, labels=digits[1])


def test_a_quantised_model_is_refused() -> None:
    assert "quantised already" in call("cluster", INT8, status=2).stderr
    with pytest.raises(InputError, match="quantised already"):
        cluster(INT8)


def _depthwise_model() -> Model:
    graph, rng = Graph("main"), np.random.default_rng(1)
    x = graph.input("image", DType.FLOAT32, (1, 8, 8, 1))
    deep = graph.constant("deep", rng.normal(size=(1, 3, 3, 64)).astype(np.float32))
    zeros = graph.constant("zeros", np.zeros(64, np.float32))
    y = graph.tensor("y", DType.FLOAT32, (1, 8, 8, 64))
    graph.add(
        "DEPTHWISE_CONV_2D",
        [x, deep, zeros],
        [y],
        padding="SAME",
        stride_h=1,
        stride_w=1,
        depth_multiplier=64,
    )
    point = graph.constant("point", rng.normal(size=(64, 1, 1, 64)).astype(np.float32))
    out = graph.tensor("out", DType.FLOAT32, (1, 8, 8, 64))
    graph.add("CONV_2D", [y, point, zeros], [out], padding="SAME", stride_h=1, stride_w=1)
    graph.outputs = [out]
    return Model([graph])


@pytest.mark.parametrize("epochs", [0, 1])
def test_depthwise_layers_with_values_of_their_own(
    epochs: int, digits: tuple[Array, Array]
) -> None:
    source, images = _depthwise_model(), digits[0][:48]
    how = Clustering(8, depthwise_count=32)
    made, report = cluster(source, images, how, schedule=Schedule(epochs, batch=16))
    counts = {r.name: r.values for r in report.layers}
    assert counts["point"] <= 8 < counts["deep"] <= 32 and report.problems == []
    assert check_clustered(made, how) == [] and check_clustered(source, how) != []
    plain, _ = cluster(source, images, count=8)
    assert np.array_equal(_deep(plain), _deep(source)) and not np.array_equal(
        _deep(made), _deep(source)
    )


def _deep(model: Model) -> Array:
    return next(t.values for t in model.main.constants if t.name == "deep")
