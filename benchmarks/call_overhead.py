"""What a call costs outside of the model: tiny models, in turns with LiteRT, in one process.

    python -m benchmarks.call_overhead [MODEL.tflite ...] [--rounds 200] [--calls 300]
                                       [--json FILE] [--write]

Of each model, in random order in every round: LiteRT's `invoke`, ours, a bound run, an unbound
`session.run`, and what takes its place with LiteRT (set the inputs, invoke, get the outputs).
Without models, some are made here that do next to nothing. A round is the mean of `calls` calls;
shown is the best round, and the median ratio of rounds with its interval.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sanderling
from benchmarks.common import fresh_cache, table, write_json, write_section
from sanderling.ir import DType, Graph, Model, Quant
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.measure.sample_statistics import Ratio, ratio

SCHEMA = "sanderling.call_overhead/1"
# Ours -> what LiteRT does for the same.
PAIRS = {
    "invoke": "LiteRT invoke",
    "bound run": "LiteRT invoke",
    "session.run": "LiteRT set, invoke, get",
}
Call = Callable[[], object]
Samples = dict[str, list[float]]
Places = tuple[list[int], list[int]]  # of inputs and outputs


def add(size: int, kind: DType = DType.FLOAT32, quant: Quant | None = None) -> bytes:
    g = Graph()
    x, y = (g.input(n, kind, (1, size), quant=quant) for n in ("x", "y"))
    z = g.tensor("z", kind, (1, size), quant=quant)
    g.add("ADD", [x, y], [z], fused_activation_function="NONE", pot_scale_int16=False)
    g.outputs = [z]
    return sanderling.dump(Model([g]))


def dense(size: int) -> bytes:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, size))
    w = g.constant("w", np.eye(size, dtype=np.float32))
    y = g.tensor("y", DType.FLOAT32, (1, size))
    g.add("FULLY_CONNECTED", [x, w, None], [y])
    g.outputs = [y]
    return sanderling.dump(Model([g]))


TINY: dict[str, Callable[[], bytes]] = {
    "ADD of 4": lambda: add(4),
    "ADD of 4, int8": lambda: add(4, DType.INT8, Quant.of(0.5, 3)),
    "FULLY_CONNECTED 4x4": lambda: dense(4),
    "FULLY_CONNECTED 64x64": lambda: dense(64),
}


def calls(content: bytes) -> dict[str, Call]:
    """Each way to run the model, warmed up, on the same inputs."""
    from ai_edge_litert.interpreter import Interpreter

    model = sanderling.load(content)
    session = model.compile()
    values = feeds(model)
    given = dict(zip(session.entry(None).inputs, values, strict=True))
    ours, theirs = sanderling.Interpreter(model_content=content), Interpreter(model_content=content)
    bound = session.bind(given)
    places = _places(theirs)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        _set_get(interpreter, places, values)
    made: dict[str, Call] = {
        "LiteRT invoke": theirs.invoke,
        "invoke": ours.invoke,
        "bound run": bound.run,
        "LiteRT set, invoke, get": lambda: _set_get(theirs, places, values),
        "session.run": lambda: session.run(given),
    }
    for call in made.values():
        call()
    for mine, other in zip(
        session.run(given).values(), _set_get(theirs, places, values), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    return made


def _places(interpreter: Any) -> Places:
    """Asked once, as whoever cares for microseconds does."""
    details = interpreter.get_input_details(), interpreter.get_output_details()
    return [d["index"] for d in details[0]], [d["index"] for d in details[1]]


def _set_get(interpreter: Any, places: Places, given: Sequence[Any]) -> list[Any]:
    inputs, outputs = places
    for place, value in zip(inputs, given, strict=True):
        interpreter.set_tensor(place, value)
    interpreter.invoke()
    return [interpreter.get_tensor(place) for place in outputs]


def measure(made: dict[str, Call], rounds: int, count: int) -> Samples:
    rng = random.Random(0)
    samples: Samples = {name: [] for name in made}
    for _ in range(rounds):
        for name in rng.sample(list(made), len(made)):
            samples[name].append(_mean(made[name], count))
    return samples


def _mean(call: Call, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def against(samples: Samples, name: str) -> Ratio:
    theirs, ours = ([[s] for s in samples[n]] for n in (PAIRS[name], name))
    return ratio(theirs, ours)


def rows(found: dict[str, Samples]) -> list[list[str]]:
    return [
        [
            model,
            name,
            f"{1e9 * min(samples[name]):.0f}",
            f"{1e9 * min(samples[PAIRS[name]]):.0f}",
            str(against(samples, name)),
        ]
        for model, samples in found.items()
        for name in PAIRS
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = {Path(p).stem: Path(p).read_bytes() for p in options.paths}
    chosen = chosen or {name: make() for name, make in TINY.items()}
    with fresh_cache():
        found = {
            name: measure(calls(content), options.rounds, options.calls)
            for name, content in chosen.items()
        }
    header = ["model", "call", "ours ns", "LiteRT ns", "LiteRT / ours"]
    text = table(header, rows(found), left=2)
    if options.json != "-":
        print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"models": found})
    if options.write:
        about = "Best of the rounds, in turns; above 1 in the ratio: sanderling is faster."
        write_section("call_overhead", f"## Calls\n\n{machine_line()}\n\n{about}\n\n{text}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: tiny models, made here")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=300, help="calls in a round")
    parser.add_argument("--json", metavar="FILE", help="all samples; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
