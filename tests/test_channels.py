"""Whole channels: what belongs together goes together, and the smaller graph answers the same."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Model, Tensor

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.differentiable.twin import Twin  # noqa: E402
from sanderling.training.without_training.channel_flow import ChannelFlow  # noqa: E402
from sanderling.training.without_training.channels import prune_channels  # noqa: E402
from sanderling.training.without_training.smaller import without_channels  # noqa: E402

ONE = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
RNG = np.random.default_rng(3)


class Builder:
    """A small network, op by op."""

    def __init__(self, channels: int = 3, seed: int | None = None) -> None:
        self.rng = RNG if seed is None else np.random.default_rng(seed)
        self.graph = Graph("main")
        self.x = self.graph.input("x", DType.FLOAT32, (1, 6, 6, channels))

    def _out(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.graph.tensor(name, DType.FLOAT32, shape)

    def _random(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = np.prod(shape[1:]) if len(shape) > 1 else 10
        return self.graph.constant(name, (self.rng.standard_normal(shape) / size**0.5).astype("f4"))

    def conv(
        self, name: str, x: Tensor, channels: int, taps: int = 1, half: bool = False
    ) -> Tensor:
        out = self._out(name, (*x.shape[:3], channels))
        weights = self._random(f"{name}/w", (channels, taps, taps, x.shape[3]))
        if half:
            stored = self.graph.constant(f"{name}/h", weights.values.astype(np.float16))
            weights = self._out(f"{name}/f", weights.shape)
            self.graph.add("DEQUANTIZE", [stored], [weights])
        bias = self._random(f"{name}/b", (channels,))
        self.graph.add(
            "CONV_2D", [x, weights, bias], [out], fused_activation_function="RELU", **ONE
        )
        return out

    def depthwise(self, name: str, x: Tensor) -> Tensor:
        out = self._out(name, x.shape)
        inputs = [x, self._random(f"{name}/w", (1, 3, 3, x.shape[3])),
                  self._random(f"{name}/b", (x.shape[3],))]  # fmt: skip
        self.graph.add(
            "DEPTHWISE_CONV_2D",
            inputs,
            [out],
            depth_multiplier=1,
            fused_activation_function="RELU6",
            **ONE,
        )
        return out

    def op(
        self, name: str, kind: str, inputs: list[Tensor], shape: tuple[int, ...], **attrs: object
    ) -> Tensor:
        out = self._out(name, shape)
        self.graph.add(kind, inputs, [out], **attrs)
        return out

    def done(self, *outputs: Tensor) -> Model:
        self.graph.outputs = list(outputs)
        return Model([self.graph])


def _network() -> Model:
    """An inverted residual with a depthwise layer, a concatenation, a scale for each channel, a
    shortcut that is padded with channels of zeros, 16-bit weights, and a flattened head."""
    net = Builder()
    stem = net.conv("stem", net.x, 16, 3)
    wide = net.conv("wide", stem, 32, half=True)
    narrow = net.conv("narrow", net.depthwise("dw", wide), 16)
    total = net.op("total", "ADD", [narrow, stem], stem.shape)
    scale = net.graph.constant("scale", np.linspace(0.5, 1.5, 16, dtype=np.float32))
    scaled = net.op("scaled", "MUL", [total, scale], total.shape)
    other = net.conv("other", scaled, 16)
    joined = net.op("joined", "CONCATENATION", [scaled, other], (1, 6, 6, 32), axis=3)
    pads = net.graph.constant("pads", np.array([[0, 0], [0, 0], [0, 0], [8, 8]], np.int32))
    padded = net.op("padded", "PAD", [other, pads], (1, 6, 6, 32))
    last = net.conv("last", joined, 32, 3)
    summed = net.op("summed", "ADD", [last, padded], last.shape)
    shape = net.graph.constant("shape", np.array([1, 36 * 32], np.int32))
    flat = net.op("flat", "RESHAPE", [summed, shape], (1, 36 * 32), new_shape=[1, 36 * 32])
    head = net._random("head/w", (5, 36 * 32))
    return net.done(net.op("out", "FULLY_CONNECTED", [flat, head], (1, 5)))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def samples() -> Array:
    return RNG.standard_normal((48, 6, 6, 3)).astype(np.float32)


def _answers(model: Model, x: Array) -> Array:
    with torch.no_grad():
        return np.asarray(Twin(model)(x)[0].numpy())


def test_channels_that_belong_together() -> None:
    model = _network()
    flow = ChannelFlow(model.main)
    names = ["stem", "wide", "dw", "narrow", "scaled", "other", "joined", "last", "padded", "flat"]
    same = {name: flow.of(model.main.find(name)).tolist() for name in names}
    assert same["stem"] == same["narrow"] == same["scaled"]
    assert same["wide"] == same["dw"] and not set(same["wide"]) & set(same["stem"])
    assert same["joined"] == same["scaled"] + same["other"]
    assert same["last"] == same["padded"] and same["last"][8:24] == same["other"]
    assert same["flat"] == same["last"] * 36
    pinned = {flow.pinned.get(n) for n in flow.of(model.main.find("out"))}
    assert pinned == {"it is a result of the model"}


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_the_smaller_model_is_the_masked_one(samples: Array, share: float) -> None:
    model = _network()
    found = prune_channels(model, [samples], share, multiple=4)
    before, after = found.macs
    assert after < (1 - share / 2) * before
    assert np.allclose(_answers(found.model, samples), _answers(found.masked, samples), atol=1e-5)
    reloaded = sanderling.load(bytes(sanderling.dump(found.model)))  # type: ignore[arg-type]
    ours = reloaded.compile(threads=1).run({"x": samples[:1]})["out"]
    assert np.allclose(ours, _answers(found.masked, samples[:1]), atol=1e-4)
    assert {x.after for x in found.layers if x.name == "wide/f"} == {round(32 * (1 - share))}
    assert found.model.main.find("wide/h").dtype is DType.FLOAT16
    assert "head/w" in found.pinned


@pytest.mark.parametrize("seed", range(4))
def test_a_channel_that_says_what_others_say_goes_for_nothing(samples: Array, seed: int) -> None:
    """Half of the channels are copies: without them the answers stay, and no channel goes together
    with its copy."""
    net = Builder(seed=seed)
    made = net.conv("made", net.x, 16, 3)
    out = net.conv("out", made, 4)
    model = net.done(out)
    for name in ("made/w", "made/b"):
        tensor = model.main.find(name)
        data = np.array(tensor.values)
        data[8:] = data[:8]
        tensor.data = data
    found = prune_channels(model, [samples], 0.5, multiple=8)
    assert found.model.main.find("made").shape[-1] == 8
    wanted = _answers(model, samples)
    assert np.abs(_answers(found.model, samples) - wanted).max() < 0.04 * np.abs(wanted).max()


def test_nothing_removed_is_the_same_model(samples: Array) -> None:
    model = _network()
    assert np.array_equal(_answers(without_channels(model, ()), samples), _answers(model, samples))


def test_what_cannot_lose_channels_says_why(samples: Array) -> None:
    net = Builder()
    model = net.done(net.conv("only", net.x, 8, 3))
    with pytest.raises(InputError, match="no layer can lose channels: it is a result"):
        prune_channels(model, [samples], 0.5)
    with pytest.raises(InputError, match="no layer can lose channels"):
        prune_channels(_network(), [samples], 0.5, names=["nothing"])


def test_an_unknown_op_keeps_its_channels(samples: Array) -> None:
    net = Builder()
    a = net.conv("a", net.x, 8)
    order = net.graph.constant("order", np.array([0, 3, 1, 2], np.int32))
    moved = net.op("moved", "TRANSPOSE", [a, order], (1, 8, 6, 6))
    model = net.done(net.conv("b", net.conv("c", moved, 16), 4))
    found = prune_channels(model, [samples], 0.5, multiple=4)
    assert {x.name: x.after for x in found.layers} == {"a/w": 8, "c/w": 8, "b/w": 4}
    assert "TRANSPOSE" in found.pinned["a/w"]


def test_the_digits_model() -> None:
    data = files("sanderling") / "data"
    model = sanderling.load(data / "digits_f32.tflite")
    with np.load(str(data / "digits_test.npz")) as found:
        images = found["images"].reshape(-1, 8, 8, 1).astype(np.float32) / 16
    made = prune_channels(model, [images[:128]], 0.25, multiple=4)
    agreeing = _answers(made.model, images[128:]).argmax(1) == _answers(model, images[128:]).argmax(
        1
    )
    assert made.macs[1] < 0.8 * made.macs[0] and agreeing.mean() > 0.9
