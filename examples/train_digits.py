"""Train the small digit classifier that ships in the package, and write it as .tflite.

    pip install sanderling scikit-learn
    python examples/train_digits.py OUT_DIR

Plain NumPy training of conv 3x3x16 - conv 3x3x32 stride 2 - fully connected, on scikit-learn's
8x8 digits; then a float and a full-integer int8 model, built with Sanderling's own graph API. It
is also an example of how to build a model without any framework.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import sanderling
from sanderling import DType, Graph, Model, Quant, Signature

RNG = np.random.default_rng(2026)
HELD_OUT = 360  # the last ones, other writers than the first


def patches(x, stride):
    """3x3 neighbourhoods, SAME padding as TFLite does it: [n, h, w, 9 * c]."""
    h = x.shape[1]
    out = -(-h // stride)
    total = max((out - 1) * stride + 3 - h, 0)
    edge = (total // 2, total - total // 2)
    padded = np.pad(x, ((0, 0), edge, edge, (0, 0)))
    return np.concatenate([padded[taps(k, out, stride)] for k in range(9)], axis=-1)


def taps(k, out, stride):
    """The index of kernel tap k's view of the padded input."""
    span = (out - 1) * stride + 1
    i, j = divmod(k, 3)
    return np.s_[:, i : i + span : stride, j : j + span : stride]


def unpatch(g, shape, stride):
    """The transpose of `patches`, for the gradient."""
    n, h, w, c = shape
    out = g.shape[1]
    total = max((out - 1) * stride + 3 - h, 0)
    padded = np.zeros((n, h + total, w + total, c), np.float32)
    for k in range(9):
        padded[taps(k, out, stride)] += g[..., k * c : (k + 1) * c]
    return padded[:, total // 2 : total // 2 + h, total // 2 : total // 2 + w]


def forward(p, x):
    a = patches(x, 1)
    ha = np.maximum(a @ p["w1"] + p["b1"], 0)
    b = patches(ha, 2)
    hb = np.maximum(b @ p["w2"] + p["b2"], 0)
    return a, ha, b, hb, hb.reshape(len(x), -1) @ p["w3"] + p["b3"]


def gradients(p, x, y):
    a, ha, b, hb, logits = forward(p, x)
    e = np.exp(logits - logits.max(1, keepdims=True))
    d = e / e.sum(1, keepdims=True)
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    g = {"w3": hb.reshape(len(x), -1).T @ d, "b3": d.sum(0)}
    db = (d @ p["w3"].T).reshape(hb.shape) * (hb > 0)
    g |= {"w2": np.tensordot(b, db, ([0, 1, 2], [0, 1, 2])), "b2": db.sum((0, 1, 2))}
    da = unpatch(db @ p["w2"].T, ha.shape, 2) * (ha > 0)
    return g | {"w1": np.tensordot(a, da, ([0, 1, 2], [0, 1, 2])), "b1": da.sum((0, 1, 2))}


def disturb(x):
    """Small shifts and noise stand in for more writers."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    i, j = RNG.integers(0, 3, 2) if RNG.random() < 0.6 else (1, 1)
    noise = RNG.normal(0, 0.1, x.shape).astype(np.float32)
    return padded[:, i : i + 8, j : j + 8] * RNG.uniform(0.8, 1.1) + noise


def train(x, y, epochs=80, rate=2e-3):
    p = {
        "w1": RNG.normal(0, 0.3, (9, 16)),
        "b1": np.zeros(16),
        "w2": RNG.normal(0, 0.1, (144, 32)),
        "b2": np.zeros(32),
        "w3": RNG.normal(0, 0.05, (512, 10)),
        "b3": np.zeros(10),
    }
    p = {k: v.astype(np.float32) for k, v in p.items()}
    m, v = ({k: np.zeros_like(w) for k, w in p.items()} for _ in range(2))
    step = 0
    for epoch in range(epochs):
        for batch in np.array_split(RNG.permutation(len(x)), len(x) // 64):
            step += 1
            for k, g in gradients(p, disturb(x[batch]), y[batch]).items():
                m[k] = 0.9 * m[k] + 0.1 * g
                v[k] = 0.999 * v[k] + 0.001 * g * g
                size = rate * (1 - epoch / epochs) * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                p[k] -= size * (m[k] / (np.sqrt(v[k]) + 1e-8) + 1e-3 * p[k])
    return p


def layers(p):
    """Weights in TFLite's layouts: OHWI for convolutions, [out, in] for fully connected."""
    conv = lambda w, cin: w.reshape(3, 3, cin, -1).transpose(3, 0, 1, 2)  # noqa: E731
    return [(conv(p["w1"], 1), p["b1"]), (conv(p["w2"], 16), p["b2"]), (p["w3"].T, p["b3"])]


def build(p, ranges=None):
    """The float model, or with activation ranges the int8 one."""
    g = Graph("main")
    names = ("image", "hidden1", "hidden2", "flat", "logits", "probabilities")
    shapes = ((1, 8, 8, 1), (1, 8, 8, 16), (1, 4, 4, 32), (1, 512), (1, 10), (1, 10))
    dtype = DType.INT8 if ranges else DType.FLOAT32
    quants = (
        [activation_quant(*r) for r in ranges] + [Quant.of(1 / 256, -128)] if ranges else [None] * 6
    )
    make = lambda i, add: add(names[i], dtype, shapes[i], quant=quants[i])  # noqa: E731
    t = [make(0, g.input)] + [make(i, g.tensor) for i in range(1, 6)]
    for index, (weight, bias) in enumerate(layers(p)):
        source, target = (
            (t[0], t[1]) if index == 0 else (t[1], t[2]) if index == 1 else (t[3], t[4])
        )
        w, b = constants(g, index, weight, bias, source.quant)
        if index == 2:
            flat = g.constant("flat_shape", np.array([-1, 512], np.int32))
            g.add("RESHAPE", [t[2], flat], [t[3]], new_shape=[-1, 512])
            g.add(
                "FULLY_CONNECTED", [source, w, b], [target], fused_activation_function="NONE"
            ).version = 4 if ranges else 1
        else:
            g.add(
                "CONV_2D",
                [source, w, b],
                [target],
                padding="SAME",
                stride_w=index + 1,
                stride_h=index + 1,
                fused_activation_function="RELU",
            ).version = 3 if ranges else 1
    g.add("SOFTMAX", [t[4]], [t[5]], beta=1.0).version = 2 if ranges else 1
    g.outputs = [t[5]]
    kind = "int8" if ranges else "float32"
    return Model(
        [g],
        [Signature("serving_default", g, {"image": t[0]}, {"probabilities": t[5]})],
        description=f"Sanderling digits, {kind}",
    )


def constants(g, index, weight, bias, source):
    """Float weights as they are; for int8 per-channel (per-tensor for fully connected)."""
    if source is None:
        return g.constant(f"w{index}", weight.astype(np.float32)), g.constant(
            f"b{index}", bias.astype(np.float32)
        )
    axes = tuple(range(1, weight.ndim)) if weight.ndim == 4 else None
    scale = np.atleast_1d(np.abs(weight).max(axes) / 127).astype(np.float32)
    spread = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    codes = np.clip(np.round(weight / spread), -127, 127).astype(np.int8)
    bias_scale = source.scale[0] * scale
    bias_codes = np.round(bias / bias_scale).astype(np.int32)
    return (
        g.constant(f"w{index}", codes, quant=Quant.of(scale)),
        g.constant(f"b{index}", bias_codes, quant=Quant.of(bias_scale)),
    )


def activation_quant(low, high):
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    return Quant.of(scale, int(np.clip(np.round(-128 - low / scale), -128, 127)))


def accuracy(model, x, y):
    session = model.compile()
    tensor = model.main.inputs[0]
    if tensor.quant is not None:
        x = np.clip(
            np.round(x / tensor.quant.scale[0]) + tensor.quant.zero_point[0], -128, 127
        ).astype(np.int8)
    return np.mean(
        [session(image[None]).argmax() == label for image, label in zip(x, y, strict=True)]
    )


def main(target):
    digits = load_digits()
    images = (digits.images.astype(np.float32) / 16)[..., None]
    x, y, xt, yt = (
        images[:-HELD_OUT],
        digits.target[:-HELD_OUT],
        images[-HELD_OUT:],
        digits.target[-HELD_OUT:],
    )
    p = train(x, y)
    _, ha, _, hb, logits = forward(p, x)
    ranges = [(0, 1), (0, ha.max()), (0, hb.max()), (0, hb.max()), (logits.min(), logits.max())]
    for name, model in (("digits_f32", build(p)), ("digits_int8", build(p, ranges))):
        sanderling.save(model, target / f"{name}.tflite")
        print(f"{name}: {accuracy(model, xt, yt):.4f} of {HELD_OUT} held-out digits")
    np.savez_compressed(
        target / "digits_test.npz",
        images=digits.images[-HELD_OUT:].astype(np.uint8),
        labels=yt.astype(np.uint8),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
