"""int8 models by other quantisers, each in the Python that it is installed in.

    python quantize_peers.py aeq model.tflite samples.npy out.tflite
    python quantize_peers.py tf graph.npz samples.npy out.tflite

Needs nothing of this package: the TensorFlow converter wants a TensorFlow model, so benchmarks/
quantize.py writes the float model's ops and weights to graph.npz, and they are built anew here.
"""

import json
import sys
from pathlib import Path

import numpy as np


def aeq(model, samples, out):
    from ai_edge_quantizer import quantizer, recipe

    made = quantizer.Quantizer(model)
    made.load_quantization_recipe(recipe.static_wi8_ai8())
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model)
    [(key, names)] = interpreter.get_signature_list().items() or [(None, None)]
    name = names["inputs"][0]
    statistics = made.calibrate({key: [{name: x[None]} for x in samples]})
    made.quantize(statistics).export_model(out)


def tf(graph, samples, out):
    import tensorflow as tf

    stored = np.load(graph)
    ops = json.loads(str(stored["ops"]))

    def run(x):
        values = {json.loads(str(stored["input"])): x}
        for op in ops:
            given = [
                values[n] if n in values else stored[f"c/{n}"] if n else None for n in op["inputs"]
            ]
            values[op["output"]] = _computed(tf, op, given)
        return values[ops[-1]["output"]]

    shape = (1, *samples.shape[1:])
    function = tf.function(run, input_signature=[tf.TensorSpec(shape, tf.float32)])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([x[None]] for x in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    Path(out).write_bytes(converter.convert())


def _computed(tf, op, given):
    name, at = op["name"], op["attrs"]
    if name in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        deep = name == "DEPTHWISE_CONV_2D"
        strides = [1, at["stride_h"], at["stride_w"], 1]
        dilations = [at["dilation_h_factor"], at["dilation_w_factor"]]
        if deep:
            made = tf.nn.depthwise_conv2d(
                given[0], np.moveaxis(given[1], 0, 3), strides, at["padding"], dilations=dilations
            )
        else:
            made = tf.nn.conv2d(
                given[0],
                given[1].transpose(1, 2, 3, 0),
                strides,
                at["padding"],
                dilations=dilations,
            )
        return _clamped(tf, tf.nn.bias_add(made, given[2]), at)
    if name == "FULLY_CONNECTED":
        flat = tf.reshape(given[0], [1, given[1].shape[1]])
        made = tf.matmul(flat, given[1].T)
        return _clamped(tf, made if given[2] is None else tf.nn.bias_add(made, given[2]), at)
    if name == "ADD":
        return _clamped(tf, given[0] + given[1], at)
    if name == "AVERAGE_POOL_2D":
        return tf.nn.avg_pool2d(
            given[0],
            [at["filter_height"], at["filter_width"]],
            [at["stride_h"], at["stride_w"]],
            at["padding"],
        )
    if name == "MEAN":
        return tf.reduce_mean(given[0], tuple(given[1].reshape(-1)), keepdims=at["keep_dims"])
    if name == "RESHAPE":
        return tf.reshape(given[0], op["shape"])
    if name == "SOFTMAX":
        return tf.nn.softmax(given[0])
    raise SystemExit(f"{name} is not known here")


def _clamped(tf, x, attrs):
    kinds = {"NONE": tf.identity, "RELU": tf.nn.relu, "RELU6": tf.nn.relu6}
    return kinds[attrs.get("fused_activation_function", "NONE")](x)


if __name__ == "__main__":
    kind, source, data, target = sys.argv[1:]
    {"aeq": aeq, "tf": tf}[kind](source, np.load(data), target)
