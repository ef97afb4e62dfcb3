"""Models with operators of TensorFlow's, written by TensorFlow's own converter (SELECT_TF_OPS).

Each comes with the function it was made of, whose answer is TensorFlow's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from sanderling.ir import Array


@dataclass(frozen=True)
class FlexModel:
    """Bytes of a .tflite file, the function in TensorFlow, and inputs in order."""

    content: bytes
    function: Callable[..., Any]
    inputs: list[Array]

    def expected(self) -> list[Array]:
        found = self.function(*map(tf.constant, self.inputs))
        return [np.asarray(y.numpy()) for y in (found if isinstance(found, tuple) else (found,))]


def convert(function: Any, *specs: Any, inputs: list[Array]) -> FlexModel:
    concrete = tf.function(function, input_signature=list(specs)).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    return FlexModel(converter.convert(), function, inputs)


def spectral_filter() -> FlexModel:
    """A convolution, a filter in the frequency domain, a whitening by an inverse matrix, and a
    convolution again: shapes are known throughout, so that both convolutions can be compiled."""
    random = np.random.default_rng(1)
    first = random.standard_normal((3, 3, 2, 4)).astype(np.float32) / 4
    second = random.standard_normal((3, 3, 4, 3)).astype(np.float32) / 4
    mask = np.exp(1j * random.random((8, 8))).astype(np.complex64)

    def run(x: Any) -> Any:
        y = tf.nn.relu(tf.nn.conv2d(x, first, 1, "SAME"))
        waves = tf.signal.fft2d(tf.cast(tf.transpose(y, [0, 3, 1, 2]), tf.complex64))
        y = tf.transpose(tf.math.real(tf.signal.ifft2d(waves * mask)), [0, 2, 3, 1])
        flat = tf.reshape(y, [64, 4])
        spread = tf.linalg.inv(tf.matmul(flat, flat, transpose_a=True) / 64.0 + tf.eye(4))
        y = tf.reshape(tf.matmul(flat, spread), [1, 8, 8, 4])
        return tf.nn.conv2d(y, second, 2, "SAME")

    spec = tf.TensorSpec([1, 8, 8, 2], tf.float32)
    return convert(run, spec, inputs=[random.standard_normal((1, 8, 8, 2)).astype(np.float32)])


def hashed_words() -> FlexModel:
    """Sentences to words, words to hashes, hashes to the mean of their vectors."""
    random = np.random.default_rng(2)
    vectors = random.standard_normal((64, 8)).astype(np.float32)
    weights = random.standard_normal((8, 3)).astype(np.float32)

    def run(text: Any) -> Any:
        plain = tf.strings.regex_replace(tf.strings.lower(text), "[^a-z ]", "")
        words = tf.strings.split(plain).to_tensor("")
        numbers = tf.strings.to_hash_bucket_fast(words, 64)
        mean = tf.reduce_mean(tf.gather(vectors, numbers), axis=1)
        return words, tf.nn.softmax(tf.matmul(mean, weights))

    sentences = [b"The quick, brown fox", b"jumps over it.", "\u00fcber den Hund".encode()]
    return convert(
        run, tf.TensorSpec([3], tf.string), inputs=[np.array(sentences, dtype=np.object_)]
    )


def distinct_classes() -> FlexModel:
    """A convolution's classes, which of them there are and how often, and what belongs to the most
    frequent: several results, and shapes that depend on data."""
    random = np.random.default_rng(3)
    weights = random.standard_normal((1, 1, 3, 5)).astype(np.float32)

    def run(x: Any) -> Any:
        classes = tf.reshape(tf.argmax(tf.nn.conv2d(x, weights, 1, "VALID"), axis=3), [-1])
        found, places, counts = tf.unique_with_counts(classes)
        most = found[tf.argmax(counts, output_type=tf.int32)]
        rows = tf.where(tf.equal(classes, most))
        parts = tf.dynamic_partition(tf.reshape(x, [-1, 3]), places, 2)
        return found, counts, rows, tf.reduce_sum(parts[1], axis=0), places

    x = random.standard_normal((1, 4, 4, 3)).astype(np.float32)
    x[..., 1:] = 0  # two classes, by the sign of the first channel
    return convert(run, tf.TensorSpec([1, 4, 4, 3], tf.float32), inputs=[x])


MODELS = {
    "spectral filter": spectral_filter,
    "hashed words": hashed_words,
    "distinct classes": distinct_classes,
}
