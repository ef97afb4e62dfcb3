"""Pruning: structures, one-shot by second-order statistics, the verb and its report."""

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

from sanderling.training.constraint import weights_of  # noqa: E402
from sanderling.training.constraints.sparsity import Sparsity  # noqa: E402
from sanderling.training.constraints.structure import Structure  # noqa: E402
from sanderling.training.differentiable.twin import Twin  # noqa: E402
from sanderling.training.loop.train import Schedule  # noqa: E402
from sanderling.training.prune import Pruning, check_pruned, prune  # noqa: E402
from sanderling.training.without_training.one_shot import Moments, factored, prune_at_once, solved  # noqa: E402
from sanderling.training.without_training.segments import segments  # noqa: E402
from sanderling.training.without_training.sparse_storage import xnnpack_conditions  # noqa: E402

DATA = files("sanderling") / "data"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(DATA / "digits_f32.tflite")


@pytest.fixture(scope="module")
def images() -> Array:
    with np.load(str(DATA / "digits_test.npz")) as found:
        return found["images"].reshape(-1, 8, 8, 1).astype(np.float32) / 16


@pytest.fixture(scope="module")
def labels() -> Array:
    with np.load(str(DATA / "digits_test.npz")) as found:
        return np.asarray(found["labels"].astype(np.int64))


def _scores(model: Model, images: Array) -> Array:
    with torch.no_grad():
        return np.asarray(Twin(model)(images)[0].numpy())


def _shares(model: Model, share: float, structure: str = "unstructured") -> dict[str, float]:
    pattern = Structure.of(structure)
    return {t.name: share for t in weights_of(model) if not pattern.refuses(t.shape)}


# -- structures -----------------------------------------------------------------------------------


def test_the_smallest_go() -> None:
    scores = torch.tensor([[4.0, 1.0, 3.0, 2.0], [8.0, 7.0, 5.0, 6.0]])
    kept = Structure.of("unstructured").kept(scores, 0.5, 4)
    assert kept.tolist() == [[False] * 4, [True] * 4]
    of_four = Structure.of("2:4").kept(scores, 0.5, 4)
    assert of_four.tolist() == [[True, False, True, False], [True, True, False, False]]
    blocks = Structure.of("2x2").kept(scores, 0.5, 4)
    assert blocks.tolist() == [[True, True, False, False]] * 2
    assert Structure.of("1x4").kept(scores, 0.0, 4).all()


def test_groups_do_not_cross_taps() -> None:
    """Six input channels, two taps: groups of four are within the channels of a tap, and of the two
    channels that are left over none has to go."""
    kept = Structure.of("2:4").kept(torch.arange(12.0).reshape(1, 12), 0.5, 6).reshape(2, 6)
    assert kept.tolist() == [[False, False, True, True, True, True]] * 2


@pytest.mark.parametrize("text", ["4:2", "0x4", "two", "2:4:8", "1x"])
def test_no_such_structure(text: str) -> None:
    with pytest.raises(InputError, match="no structure"):
        Structure.of(text)


def test_what_is_too_small_is_refused_with_a_reason() -> None:
    assert "3 input channels" in str(Structure.of("2:4").refuses((16, 3, 3, 3)))
    assert "smaller than a block" in str(Structure.of("1x64").refuses((16, 3, 3, 3)))
    assert Structure.of("1x16").refuses((16, 3, 3, 3)) is None


# -- one shot -------------------------------------------------------------------------------------


def test_weights_that_stay_make_up_for_those_that_go() -> None:
    """Two equal inputs: one weight can carry what both carried."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((400, 3)).astype(np.float32))
    x[:, 1] = x[:, 0]
    moments = Moments.of(3)
    moments.add(x, x)
    before = torch.tensor([[1.0, 0.9, 2.0, 0.5]])
    pattern = Structure.of("unstructured")
    made = solved(before, moments, lambda s, part: pattern.kept(s, part / 3, 3))
    wanted = torch.tensor([[1.9, 0.0, 2.0, 0.5]])
    assert torch.allclose(made, wanted, atol=0.05)


@pytest.mark.parametrize("structure", ["unstructured", "2:4", "1x4", "4x1"])
def test_one_shot_is_nearer_than_magnitude(model: Model, images: Array, structure: str) -> None:
    shares = _shares(model, 0.5, structure)
    found = prune_at_once(model, [images[:128]], shares, structure)
    rule = Sparsity(0.5, structure)
    assert rule.problems(found.model) == [] != rule.problems(model)
    plain = Twin(model)
    rule.begin({t: w.detach() for t, w in plain.parameters_of.items()}, 0)
    plain.constraints = [rule]
    with torch.no_grad():
        (by_size,) = plain(images[128:])
    wanted = _scores(model, images[128:])
    apart = [
        np.abs(s - wanted).mean() for s in (_scores(found.model, images[128:]), by_size.numpy())
    ]
    assert apart[0] < 0.5 * apart[1]
    assert all(layer.error is not None and layer.error < 0.5 for layer in found.layers)


def test_one_seed_gives_one_result(model: Model, images: Array) -> None:
    shares = _shares(model, 0.7)
    made = [bytes(sanderling.dump(prune_at_once(model, [images[:64]], shares).model)) for _ in "ab"]
    assert made[0] == made[1] != bytes(sanderling.dump(model))


def _branches() -> Model:
    """A residual over a convolution, a concatenation, a 16-bit weight, and two layers that share
    one: what a walk through the graph has to carry along."""
    rng = np.random.default_rng(1)
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 6, 6, 4))
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1,
               "fused_activation_function": "RELU"}  # fmt: skip
    half = graph.constant("half", rng.standard_normal((4, 3, 3, 4)).astype(np.float16) / 6)
    wide = graph.tensor("wide", DType.FLOAT32, (4, 3, 3, 4))
    graph.add("DEQUANTIZE", [half], [wide])
    bias = graph.constant("bias", np.full(4, 0.1, np.float32))
    a, b, joined, out = (
        graph.tensor(name, DType.FLOAT32, shape)
        for name, shape in (
            ("a", (1, 6, 6, 4)),
            ("b", (1, 6, 6, 4)),
            ("j", (1, 6, 6, 8)),
            ("out", (1, 6, 6, 5)),
        )
    )
    graph.add("CONV_2D", [x, wide, bias], [a], **options)
    graph.add("CONV_2D", [a, wide, bias], [b], **options)
    total = graph.tensor("total", DType.FLOAT32, (1, 6, 6, 4))
    graph.add("ADD", [b, x], [total])
    graph.add("CONCATENATION", [total, a], [joined], axis=3)
    last = graph.constant("last", rng.standard_normal((5, 1, 1, 8)).astype(np.float32))
    graph.add("CONV_2D", [joined, last, None], [out], **options)
    graph.outputs = [out]
    return Model([graph])


def test_branches_and_shared_weights() -> None:
    model = _branches()
    layers = [op for op in model.main.ops if op.name == "CONV_2D"]
    assert [len(s.layers) for s in segments(model.main, layers, 16)] == [1, 1, 1]
    x = np.random.default_rng(2).standard_normal((32, 6, 6, 4)).astype(np.float32)
    found = prune_at_once(model, [x], {"wide": 0.5, "last": 0.5})
    for name in ("half", "last"):
        assert float((found.model.main.find(name).values == 0).mean()) >= 0.5
    assert found.model.main.find("half").dtype is DType.FLOAT16
    wanted, given = _scores(model, x), _scores(found.model, x)
    assert np.abs(wanted - given).mean() < 0.35 * np.abs(wanted).mean()  # of white noise


def test_too_few_samples(model: Model, images: Array) -> None:
    with pytest.raises(InputError, match="3 samples are too few"):
        prune_at_once(model, [images[:3]], _shares(model, 0.5))


# -- the function ---------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "one-shot": {"sparsity": 0.6},
    "one-shot, then trained": {"sparsity": 0.8, "schedule": Schedule(epochs=2, rate=1e-3)},
    "2:4": {"structure": "2:4"},
    "layers differ": {"sparsity": 0.6, "whole_model": True},
    "magnitude, no training": {"method": "magnitude", "sparsity": 0.3},
    "magnitude, trained": {"method": "magnitude", "sparsity": 0.6, "growth": "constant",
                           "schedule": Schedule(epochs=3, rate=1e-3)},
    "fewer channels": {"structure": "channels", "sparsity": 0.25, "multiple": 4},
    "fewer channels, trained": {"structure": "channels", "multiple": 4,
                                "schedule": Schedule(epochs=2, rate=1e-3)},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_prune(model: Model, images: Array, labels: Array, way: str) -> None:
    made, report = prune(model, images, labels=labels, **WAYS[way])
    assert report.problems == [] and report.compared["agreement"]["value"] > 0.8
    assert report.compared["samples"] == 72 and report.samples == 288
    assert report.zipped_after < report.zipped_before
    assert report.expected_speedup > 1.2
    wanted = report.compared["accuracy"]
    assert wanted["difference"]["value"] == pytest.approx(wanted["after"] - wanted["before"])
    assert report.to_json()["schema"] == "sanderling.prune/1"
    if WAYS[way].get("structure") == "channels":
        assert report.size_after < 0.8 * report.size_before
    assert [t.shape for t in made.main.outputs] == [t.shape for t in model.main.outputs]


def test_as_many_zeros_as_the_target_allows(model: Model, images: Array, labels: Array) -> None:
    made, report = prune(model, images, labels=labels, max_drop=0.03, whole_model=True)
    assert report.target["met"] and report.target["figure"] == "accuracy"
    assert 0.3 < report.zeros < 0.95 and report.settings["sparsity"] in [
        0.05 * i for i in range(20)
    ]
    refused = [t for t in report.trials if not t.meets]
    assert refused and sum(t.chosen for t in report.trials) == 1
    assert made.main.ops


def test_what_cannot_be_met_says_so(
    model: Model, images: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sanderling.training.prune.LEVELS", [0.95])
    _, report = prune(model, images, max_drop=0.0, method="magnitude")
    assert report.target["figure"] == "agreement" and report.target["float"] == 1.0
    assert not report.target["met"] and report.target["reached"] < 0.9
    assert report.settings["sparsity"] == 0.95


def test_which_layers(model: Model, images: Array) -> None:
    _, report = prune(model, images[:64], operators=["FULLY_CONNECTED"])
    assert [r.zeros > 0.4 for r in report.layers] == [False, False, True]
    assert report.skipped == dict.fromkeys(["w0", "w1"], "it is of CONV_2D")
    _, named = prune(model, images[:64], only=["w1"])
    assert [r.zeros > 0.4 for r in named.layers] == [False, True, False]


def test_layers_that_pay(model: Model, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is asked from which share of zeros on a layer gains."""
    answers = {"w0": None, "w1": 0.5, "w2": 0.9}
    monkeypatch.setattr(
        "sanderling.training.prune.sparse_threshold",
        lambda op, structure: answers[op.operand(1).name],
    )
    _, report = prune(model, images[:64], sparsity=0.6, policy="pays")
    assert [r.zeros > 0.4 for r in report.layers] == [False, True, False]
    assert "do not make it faster" in report.skipped["w0"] and "90%" in report.skipped["w2"]


def test_a_name_that_begins_another(model: Model) -> None:
    """`w1` is chosen by its operator, `w1/more` is not, though its name has the other in it."""
    copy = model.copy()
    copy.main.find("w2").name = "w1/more"
    _, report = prune(copy, method="magnitude", operators=["CONV_2D"])
    assert [r.zeros > 0.4 for r in report.layers] == [True, True, False]
    assert report.problems == []


def test_sparse_tensors_take_less_room_and_answer_the_same(model: Model, images: Array) -> None:
    dense, _ = prune(model, images[:64], sparsity=0.8)
    made, report = prune(model, images[:64], sparsity=0.8, storage="sparse")
    assert report.size_after < 0.5 * report.size_before and report.problems == []
    assert sum(op.name == "DENSIFY" for op in made.main.ops) == 3
    again = sanderling.load(bytes(sanderling.dump(made)))  # type: ignore[arg-type]
    name = model.main.inputs[0].name
    ours, plain = (m.compile(threads=1).run({name: images[:1]}) for m in (again, dense))
    assert np.array_equal(*(next(iter(found.values())) for found in (ours, plain)))
    assert check_pruned(again, Pruning(0.8)) == [] != check_pruned(again, Pruning(0.9))


def test_litert_reads_sparse_tensors(model: Model, images: Array) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="the extra [peers]")
    made, _ = prune(model, images[:64], sparsity=0.8, storage="sparse")
    judge = litert.Interpreter(model_content=bytes(sanderling.dump(made)))
    judge.allocate_tensors()
    judge.set_tensor(judge.get_input_details()[0]["index"], images[:1])
    judge.invoke()
    theirs = judge.get_tensor(judge.get_output_details()[0]["index"])
    assert np.allclose(theirs, _scores(made, images[:1]), atol=1e-5)


def test_xnnpack_says_what_it_misses(model: Model) -> None:
    found = " | ".join(xnnpack_conditions(model))
    for words in ("does not end with MEAN", "not 3x3 over 3 channels", "FULLY_CONNECTED", "1x1"):
        assert words in found


# -- the verb -------------------------------------------------------------------------------------


def test_the_verb(tmp_path: Path) -> None:
    out, page = tmp_path / "o.tflite", tmp_path / "o.html"
    command = ["prune", F32, "-o", out, "--data", _digits(tmp_path), "--labels", "labels",
               "--sparsity", 0.6, "--report", page]  # fmt: skip
    record = answer(*command)
    assert record["schema"] == "sanderling.prune/1" and record["problems"] == []
    assert record["zeros"] == pytest.approx(0.6, abs=0.01)
    assert "Pruning of" in page.read_text() and "Against the float model" in page.read_text()
    assert (
        "everything that was asked holds" in call("prune", out, "--check", "--sparsity", 0.6).stdout
    )
    call("prune", out, "--check", "--sparsity", 0.7, status=1)


def test_a_target_that_is_missed_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sanderling.training.prune.LEVELS", [0.95])
    out = tmp_path / "o.tflite"
    command = ["prune", F32, "-o", out, "--data", _digits(tmp_path), "--method", "magnitude",
               "--max-drop", 0]  # fmt: skip
    found = call(*command, status=1)
    assert "missed" in found.stdout and not out.exists()
    call(*command, "--anyway", status=1)
    assert out.is_file()


def _digits(folder: Path) -> Path:
    path = folder / "digits.npz"
    with np.load(str(DATA / "digits_test.npz")) as found:
        images = found["images"].reshape(-1, 8, 8, 1).astype(np.float32) / 16
        np.savez(path, x=images, labels=found["labels"].astype(np.int64))
    return path


REFUSED: dict[str, tuple[list[object], str]] = {
    "a sparsity of all": (["--sparsity", 1], "a sparsity of 1.0|between 0 and 1"),
    "no such structure": (["--structure", "3x"], "no structure '3x'|unstructured|channels"),
    "too large a block": (["--structure", "1x4096"], "no weight is left|smaller than a block"),
    "no such method": (["--method", "magic"], "no method 'magic'|one-shot"),
    "no such weight": (["--only", "nothing"], "no weight has a name with nothing"),
    "wrong labels": (["--labels", "y"], "no array 'y'|it holds"),
    "few samples": (["--samples", 4], "too few for statistics"),
    "an m:n that is searched": (["--structure", "2:4", "--max-drop", 0.1], "2:4 says how many"),
    "no page": (["--report", "page.txt"], "page.txt|.html"),
    "no such operator": (["--operator", "ADD"], "no weights of ADD"),
    "a target that nothing judges": (["--held-out", 0, "--max-drop", 0.01], "are held out"),
    "a target and a sparsity": (["--max-drop", 0.1, "--sparsity", 0.9], "--max-drop finds"),
    "a sparsity that m:n cannot have": (["--structure", "2:4", "--sparsity", 0.9], "makes 0.5 of"),
    "sparse tensors of channels": (["--structure", "channels", "--storage", "sparse"], "no zeros"),
    "a share beside no labels": (["--mix", 0.5], "--mix|needs labels"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_options(tmp_path: Path, what: str) -> None:
    options, message = REFUSED[what]
    out = tmp_path / "o.tflite"
    result = call("prune", F32, "-o", out, "--data", _digits(tmp_path), *options, status=2)
    for word in message.split("|"):
        assert word in result.stderr, result.stderr
    assert not out.exists() and "Traceback" not in result.stderr


def _rows(**changed: Any) -> dict[str, Array]:
    """Samples and labels for the model, with other ones in the place of some."""
    x = np.random.default_rng(0).random((32, 8, 8, 1), np.float32)
    return {"images": x, "labels": np.arange(32) % 10} | changed


def _with(value: float) -> Array:
    x = _rows()["images"]
    x[5, 0, 0, 0] = value
    return x


BAD_DATA: dict[str, tuple[dict[str, Array], str]] = {
    "names as labels": (_rows(labels=np.array(["cat"] * 32)), "labels of the type <U3"),
    "a class too high": (_rows(labels=np.full(32, 12)), "labels from 12 to 12 for 10 classes"),
    "a class below 0": (_rows(labels=np.full(32, -1)), "labels from -1 to -1"),
    "broken classes": (_rows(labels=np.full(32, 3.5)), "labels of the type float64"),
    "one-hot rows": (_rows(labels=np.eye(10, dtype=int)[np.arange(32) % 10]), "argmax(1)"),
    "NaN": (_rows(images=_with(np.nan)), "sample 5 has NaN values"),
    "infinite": (_rows(images=_with(np.inf)), "sample 5 has infinite values"),
    "huge": (_rows(images=_with(1e30)), "sample 5 has absurd values: as large as 1e+30"),
    "another shape": (_rows(images=np.zeros((32, 9, 8, 1))), "'images' of shape [32, 9, 8, 1]"),
}


READING = ("prune", "cluster", "prune --structure channels", "qat")
BAD_PAIRS = [(w, v) for w in BAD_DATA for v in READING]


@pytest.mark.parametrize(("what", "verb"), BAD_PAIRS)
def test_bad_data_is_a_sentence(tmp_path: Path, what: str, verb: str) -> None:
    arrays, message = BAD_DATA[what]
    rows, out = tmp_path / "rows.npz", tmp_path / "o.tflite"
    np.savez(rows, **arrays)  # type: ignore[arg-type]
    name, *options = verb.split()
    command = [name, F32, "-o", out, "--data", rows, "--labels", "labels", *options]
    result = call(*command, status=2)
    assert message in result.stderr and "Traceback" not in result.stderr, result.stderr
    assert not out.exists()


def test_samples_that_are_all_alike(model: Model) -> None:
    """Their moments have rank 1; damping makes them a matrix that can be factored."""
    for options in ({}, {"structure": "channels", "multiple": 4}):
        _, report = prune(model, np.full((16, 8, 8, 1), 0.5, np.float32), **options)
        assert report.problems == []


def test_a_matrix_that_rounding_made_indefinite() -> None:
    ones = torch.ones(3, 3) - 1e-7 * torch.eye(3)
    found = factored(ones)
    assert torch.allclose(found @ found.T, ones, atol=0.05)
    with pytest.raises(InputError, match="too large"):
        factored(torch.full((2, 2), torch.nan))


@pytest.mark.parametrize("verb", ["prune", "cluster", "qat", "quantize"])
def test_one_file_cannot_be_two(tmp_path: Path, verb: str) -> None:
    """Told before the work: there are no samples at all."""
    out, page, model = tmp_path / "o.tflite", tmp_path / "o.html", tmp_path / "m.tflite"
    before = Path(F32).read_bytes()
    model.write_bytes(before)
    pairs = {
        "--output and --json": ["-o", out, "--json", tmp_path / "." / "o.tflite"],
        "--report and --json": ["--report", page, "--json", page],
        "MODEL and --json": ["--json", model],
    }
    for names, options in pairs.items():
        assert f"{names} are the same file" in call(verb, model, *options, status=2).stderr
    assert model.read_bytes() == before and not out.exists() and not page.exists()


def test_wrong_models_and_no_data(tmp_path: Path) -> None:
    nothing = call("prune", F32, "--check", "--structure", "channels", status=2).stderr
    assert "leave nothing to check" in nothing
    for verb in ("prune", "cluster", "qat"):
        refused = call(verb, INT8, "--data", _digits(tmp_path), status=2).stderr
        assert f"{INT8}: the model is quantised already" in refused
    assert "there are no samples" in call("prune", F32, status=2).stderr
    graph = Graph("main")
    x, y = graph.input("x", DType.FLOAT32, (1, 4)), graph.tensor("y", DType.FLOAT32, (1, 4))
    graph.add("RELU", [x], [y])
    graph.outputs = [y]
    sanderling.save(Model([graph]), tmp_path / "none.tflite")
    command = ["prune", tmp_path / "none.tflite", "--method", "magnitude"]
    assert "there is no product" in call(*command, status=2).stderr


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    out = tmp_path / "o.tflite"
    result = call("prune", F32, "-o", out, "--method", "magnitude", status=2)
    assert "No space left" in result.stderr and list(tmp_path.iterdir()) == []
