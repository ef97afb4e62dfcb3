"""Which operators the installed LiteRT has kernels for, found by asking it.

    python scripts/litert_ops.py [-o docs/litert_ops.json]

For each builtin operator a one-op model is written and given to LiteRT's interpreter, with every
version up to MOST_VERSIONS and both resolvers: the optimised kernels, and the reference kernels
that judge our conformance tests. What has no kernel is refused while the model is resolved; any
later complaint (our operands are nonsense) comes from a kernel that exists. LiteRT aborts the
process on some of them, so the asking is done by a child that is started again after a crash.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from sanderling.format import dump
from sanderling.format.schema import ENUMS, OPTIONS, TABLES
from sanderling.ir import CUSTOM, DType, Graph, Model, Op

RESOLVERS = ("BUILTIN_WITHOUT_DEFAULT_DELEGATES", "BUILTIN_REF")
MOST_VERSIONS = 16
# Custom operators that LiteRT's sources register, or once did.
CUSTOM_NAMES = ("NumericVerify", "Mfcc", "AudioSpectrogram", "TFLite_Detection_PostProcess",
                "aeq.hadamard_rotation", "odml.rms_norm", "odml.scaled_dot_product_attention",
                "RandomStandardNormal", "Rfft", "Irfft2d", "Roll", "Sign", "Table", "UnPack",
                "Convolution2DTransposeBias", "MaxPoolingWithArgmax2D",
                "MaxUnpooling2D")  # fmt: skip
NO_KERNEL = ("didn't find op", "unresolved custom op", "unresolved builtin", "unresolved-ops",
             "unsupported operations", "op builtin_code out of range")  # fmt: skip

Question = tuple[str, int, str]  # operator, version, resolver


def one_op(name: str, version: int) -> bytes:
    """A model with the operator on float operands; subgraphs it refers to are empty."""
    graph, other = Graph("main"), Graph("other")
    x = graph.input("x", DType.FLOAT32, (1, 1))
    y = graph.tensor("y", DType.FLOAT32, (1, 1))
    z = other.input("z", DType.FLOAT32, (1, 1))
    other.outputs = [z]
    fields = TABLES.get(OPTIONS.get(name, ""), ())
    attrs = {f.name: other for f in fields if f.kind == "graph"}
    attrs |= {f.name: [other] for f in fields if f.element == "graph"}  # type: ignore[misc]
    graph.insert(Op(name, [x], [y], attrs, version=version))
    graph.outputs = [y]
    return dump(Model([graph, other]))


def answer(question: Question) -> bool:
    """Whether LiteRT resolves the operator."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType  # type: ignore[import-untyped]

    name, version, resolver = question
    try:
        interpreter = Interpreter(
            model_content=one_op(name, version),
            experimental_op_resolver_type=OpResolverType[resolver],
        )
        if name.startswith(CUSTOM):  # builtins are resolved by now; custom operators later
            interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        return not any(sign in str(error).lower() for sign in NO_KERNEL)
    return True


def serve() -> None:
    """The child: a question a line on stdin, an answer a line on stdout."""
    for line in sys.stdin:
        print("yes" if answer(tuple(json.loads(line))) else "no", flush=True)


def ask(questions: list[Question]) -> Iterator[tuple[Question, bool]]:
    """Answers in order; a question that kills the child has a kernel behind it."""
    while questions:
        child = subprocess.run(
            [sys.executable, __file__, "--serve"],
            text=True,
            check=False,
            input="".join(json.dumps(q) + "\n" for q in questions),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        answers = child.stdout.split()
        if child.returncode:
            print(f"crashed, so it has a kernel: {questions[len(answers)]}", file=sys.stderr)
            answers.append("yes")
        yield from zip(questions, (a == "yes" for a in answers), strict=False)
        questions = questions[len(answers) :]


def report(found: Iterable[tuple[Question, bool]]) -> dict[str, object]:
    """Operators with and without kernels, and the span of versions each resolver takes."""
    spans: dict[str, dict[str, list[int]]] = {}
    for (name, version, resolver), has in found:
        if has:
            span = spans.setdefault(name, {}).setdefault(resolver, [version, version])
            span[1] = version
    builtin = ENUMS["BuiltinOperator"]
    return {
        "litert": installed("ai-edge-litert"),
        "runs": [name for name in builtin if name in spans],
        "none": [name for name in builtin if name not in spans],
        "custom": [name for name in spans if name.startswith(CUSTOM)],
        "versions": spans,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    place = Path(__file__).parent.parent / "docs" / "litert_ops.json"
    parser.add_argument("-o", "--output", type=Path, default=place)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    builtin = [n for n in ENUMS["BuiltinOperator"] if n != "CUSTOM"]
    questions = [(n, v, r) for n in builtin for r in RESOLVERS for v in range(1, MOST_VERSIONS + 1)]
    questions += [(CUSTOM + n, 1, r) for n in CUSTOM_NAMES for r in RESOLVERS]
    found = report(ask(questions))
    text = json.dumps(found, indent=1)
    options.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
