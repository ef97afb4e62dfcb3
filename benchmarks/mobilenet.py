"""A MobileNet-like network of our own, trained on CIFAR-10 by `sanderling.train`.

    python -m benchmarks.mobilenet FOLDER        # writes FOLDER/mobilenet_cifar10_f32.tflite

Depthwise and pointwise layers, with residuals where the shape stays; 9 million multiplications,
0.9 MB. The graph is built here with random weights, and learns from the 10,000 training pictures:
from their labels, and from what the shared ResNet-20 says of them. The labels that `train` hands to
a loss of one's own may be anything: here a row of the teacher's scores, and the class behind them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from sanderling import Schedule, load, save, train
from sanderling.ir import Array, DType, Graph, Model, Tensor

from .common import SHARED

NAME = "mobilenet_cifar10_f32"
TEACHER = "resnet20_cifar10_f32"
# Channels, stride, and how many of such blocks.
BLOCKS = ((64, 2, 1), (64, 1, 1), (128, 2, 1), (128, 1, 3), (256, 2, 1), (256, 1, 2))
PLAN = Schedule(epochs=20, batch=64, rate=2e-3, held_out=0.02, mirror=True, crop=4)
TEMPERATURE = 2.0


class _Writer:
    """Writes layers with random weights."""

    def __init__(self, seed: int) -> None:
        self.graph, self.rng = Graph("main"), np.random.default_rng(seed)
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}_{self.count}"

    def weights(self, shape: tuple[int, ...], reads: int, gain: float) -> Tensor:
        """Of a size that keeps the spread of what passes: reads is how many a sum is of."""
        values = self.rng.normal(size=shape) * gain * np.sqrt(2 / reads)
        return self.graph.constant(self.name("weights"), values.astype(np.float32))

    def bias(self, units: int) -> Tensor:
        return self.graph.constant(self.name("bias"), np.zeros(units, np.float32))

    def conv(self, x: Tensor, units: int, size: int, act: str, gain: float = 1.0) -> Tensor:
        n, high, wide, channels = x.shape
        w = self.weights((units, size, size, channels), size * size * channels, gain)
        y = self.graph.tensor(self.name("conv"), DType.FLOAT32, (n, high, wide, units))
        self.graph.add(
            "CONV_2D",
            [x, w, self.bias(units)],
            [y],
            padding="SAME",
            stride_h=1,
            stride_w=1,
            fused_activation_function=act,
        )
        return y

    def depthwise(self, x: Tensor, stride: int) -> Tensor:
        n, high, wide, channels = x.shape
        w = self.weights((1, 3, 3, channels), 9, 1.0)
        shape = (n, high // stride, wide // stride, channels)
        y = self.graph.tensor(self.name("depthwise"), DType.FLOAT32, shape)
        self.graph.add(
            "DEPTHWISE_CONV_2D",
            [x, w, self.bias(channels)],
            [y],
            padding="SAME",
            stride_h=stride,
            stride_w=stride,
            depth_multiplier=1,
            fused_activation_function="RELU",
        )
        return y

    def block(self, x: Tensor, units: int, stride: int) -> Tensor:
        inner = self.depthwise(x, stride)
        if stride > 1 or units != x.shape[3]:
            return self.conv(inner, units, 1, "RELU")
        aside = self.conv(inner, units, 1, "NONE", gain=0.3)
        y = self.graph.tensor(self.name("sum"), DType.FLOAT32, x.shape)
        self.graph.add("ADD", [x, aside], [y], fused_activation_function="RELU")
        return y

    def head(self, x: Tensor, classes: int) -> Tensor:
        mean = self.graph.tensor("mean", DType.FLOAT32, (1, x.shape[3]))
        axes = self.graph.constant("axes", np.array([1, 2], np.int32))
        self.graph.add("MEAN", [x, axes], [mean], keep_dims=False)
        y = self.graph.tensor("logits", DType.FLOAT32, (1, classes))
        w = self.weights((classes, x.shape[3]), x.shape[3], 1.0)
        self.graph.add(
            "FULLY_CONNECTED", [mean, w, self.bias(classes)], [y], fused_activation_function="NONE"
        )
        return y


def untrained(seed: int = 0) -> Model:
    """The network with random weights."""
    made = _Writer(seed)
    x = made.conv(made.graph.input("picture", DType.FLOAT32, (1, 32, 32, 3)), 32, 3, "RELU")
    for units, stride, times in BLOCKS:
        for _ in range(times):
            x = made.block(x, units, stride)
    made.graph.outputs = [made.head(x, 10)]
    return Model([made.graph])


def _loss(outputs: list[torch.Tensor], given: torch.Tensor) -> torch.Tensor:
    """Half by the labels, half by the teacher's scores; a row has the scores, then the class."""
    scores, wanted = outputs[0], given[:, :-1] / TEMPERATURE
    own = F.cross_entropy(scores, given[:, -1].long())
    apart = F.kl_div(
        F.log_softmax(scores / TEMPERATURE, 1),
        F.log_softmax(wanted, 1),
        reduction="batchmean",
        log_target=True,
    )
    return 0.5 * own + 0.5 * TEMPERATURE**2 * apart


def _scores(model: Model, pictures: Array) -> Array:
    """What the model says before its softmax; of scores that are shares, their logarithm."""
    session, name = model.compile(threads=1), model.main.inputs[0].name
    found = np.stack([next(iter(session.run({name: x[None]}).values()))[0] for x in pictures])
    is_shares = found.min() >= 0 and np.allclose(found.sum(1), 1, atol=1e-3)
    return np.log(np.maximum(found, 1e-6)) if is_shares else found


def trained(folder: Path, pictures: Array, labels: Array, plan: Schedule = PLAN) -> Path:
    """The file of the trained network; made first if there is none."""
    path = folder / f"{NAME}.tflite"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    said = _scores(load(SHARED / "models" / f"{TEACHER}.tflite"), pictures)
    rows = np.concatenate([said, labels[:, None]], 1).astype(np.float32)
    found = train(
        untrained(),
        pictures,
        labels=rows,
        loss=_loss,
        schedule=plan,
        checkpoint=folder / f"{NAME}.pt",
    )
    save(found.model, path)
    return path


def main() -> None:
    from .prune import cifar, classes_of

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = trained(given.folder, *cifar("train"))
    test, truth = cifar("test")
    print(f"{path}: {np.mean(classes_of(load(path), test) == truth):.2%} of the test set")


if __name__ == "__main__":
    main()
