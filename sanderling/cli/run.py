"""`sanderling run`."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from ..config import MAX_MEMORY
from ..errors import InputError
from ..evaluate.inputs import Picture, dequantize_array, read_array
from ..format import load, write_atomic
from ..ir import Array, DType, Signature, Tensor
from ..runtime.session import Session
from .common import (
    DelegateNames,
    JsonPath,
    ModelPath,
    check_target,
    console,
    pairs,
    table,
    write_json,
)

SCHEMA = "sanderling.run/1"
EVERYTHING = "*"  # the target that takes all outputs


def run(
    model: ModelPath,
    input: Annotated[list[str], typer.Option("--input", "-i", metavar="NAME=FILE",
        help="A .npy, .npz or picture for an input; NAME= may be left out for the only one. Reals "
             "are quantised by the tensor's parameters.")] = [],  # noqa: B006
    output: Annotated[list[str], typer.Option("--output", "-o", metavar="NAME=FILE",
        help="Write an output: .npy, or .npz for all of them.")] = [],  # noqa: B006
    random: Annotated[int | None, typer.Option(metavar="SEED",
        help="Feed inputs that are not given with random values.")] = None,
    shape: Annotated[list[str], typer.Option(metavar="NAME=1,2,3",
        help="The shape of a random input, for open dimensions.")] = [],  # noqa: B006
    signature: Annotated[str | None, typer.Option(metavar="KEY",
        help="The entry point to run, for a model with several.")] = None,
    delegate: DelegateNames = [],  # noqa: B006
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads to use.")] = None,
    mean: Annotated[str | None, typer.Option(metavar="M[,M,M]",
        help="For pictures: (pixel - mean) / std. Default: 0..1 for float inputs, the pixels "
             "themselves for integer inputs.")] = None,
    std: Annotated[str | None, typer.Option(metavar="S[,S,S]", help="See --mean.")] = None,
    resample: Annotated[str, typer.Option(metavar="HOW",
        help="For pictures: nearest, bilinear, bicubic or box.")] = "bilinear",
    bgr: Annotated[bool, typer.Option("--bgr", help="For pictures: blue first.")] = False,
    dequantize: Annotated[bool, typer.Option("--dequantize",
        help="Write and print integer outputs as reals.")] = False,
    labels: Annotated[Path | None, typer.Option(metavar="FILE",
        help="Class names, one a line: print the best classes of each output.")] = None,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="How many classes.")] = 5,
    json: JsonPath = "",
) -> None:  # fmt: skip
    """Run a model once on files and print or write its outputs."""
    source = load(model)
    session = Session(source, delegate, threads)
    entry = session.entry(signature)
    picture = Picture(_numbers(mean, "--mean"), _numbers(std, "--std"), resample, bgr)
    names = None if labels is None else _read_labels(labels)
    feeds = _feeds(entry, pairs(input, "--input"), picture, random, pairs(shape, "--shape"))
    targets = _targets(entry, pairs(output, "--output"))
    if json not in ("", "-"):
        check_target(Path(json))
    begin = time.perf_counter()
    results = session.run(feeds, signature=signature)
    seconds = time.perf_counter() - begin
    if dequantize:
        results = {n: dequantize_array(a, entry.outputs[n]) for n, a in results.items()}
    results = {n: _portable(a) for n, a in results.items()}
    _write(results, targets)
    record = _record(str(model), results, seconds)
    if names is not None:
        record["top"] = {n: _best(dequantize_array(a, entry.outputs[n]), names, top)
                         for n, a in results.items() if a.dtype.kind in "fiub"}  # fmt: skip
    if not write_json(record, json):
        _print(console(), record)


def _feeds(entry: Signature, files: dict[str, str], picture: Picture, seed: int | None,
           shapes: dict[str, str]) -> dict[str, Array]:  # fmt: skip
    files, shapes = _named(entry.inputs, files, "input"), _named(entry.inputs, shapes, "input")
    unused = [name for name in shapes if name in files or seed is None]
    if unused:
        raise InputError(f"--shape is for random inputs, '{unused[0]}' is not one",
                         fix="add --random 0, or give a file of that shape")  # fmt: skip
    feeds: dict[str, Array] = {}
    rng = np.random.default_rng(seed)
    for name, tensor in entry.inputs.items():
        if name in files:
            feeds[name] = read_array(files[name], tensor, picture)
        elif seed is not None:
            feeds[name] = _random(tensor, _shape(shapes.get(name), tensor), rng)
        else:
            raise InputError(f"input '{name}' {tensor.type_text} is not given",
                             fix=f"add --input {name}=FILE, or --random 0")  # fmt: skip
    return feeds


def _named(tensors: dict[str, Tensor], given: dict[str, str], what: str) -> dict[str, str]:
    """Options by name: an unnamed one belongs to the only tensor."""
    if "" in given and len(tensors) > 1:
        raise InputError(f"the model has {len(tensors)} {what}s, say which one is meant",
                         fix=f"write NAME=..., with a name of {', '.join(tensors)}")  # fmt: skip
    named = {name or next(iter(tensors), ""): value for name, value in given.items()}
    for name in named:
        if name not in tensors:
            raise InputError(f"there is no {what} '{name}'",
                             fix=f"the {what}s are {', '.join(tensors)}")  # fmt: skip
    return named


def _random(tensor: Tensor, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    dtype = tensor.dtype
    if dtype is DType.STRING:
        return np.full(shape, b"sanderling", np.object_)
    if dtype.numpy.kind in "iu":
        low, high = (0, 100) if dtype.bits > 8 else dtype.bounds
        return rng.integers(low, high + 1, shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    return rng.uniform(-1, 1, shape).astype(dtype.numpy)


def _shape(text: str | None, tensor: Tensor) -> tuple[int, ...]:
    if text is None:
        return tensor.shape
    sizes = text.split(",")
    if not all(n.strip().isdecimal() for n in sizes):
        raise InputError(f"'{text}' is not a shape", where="--shape",
                         fix="write sizes with commas: 1,224,224,3")  # fmt: skip
    shape = tuple(int(n) for n in sizes)
    if tensor.dtype.nbytes(shape) > MAX_MEMORY.size():
        raise InputError(f"{text} would take {tensor.dtype.nbytes(shape)} bytes", where="--shape",
                         fix=f"use a smaller shape, or set {MAX_MEMORY.name}")  # fmt: skip
    return shape


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(float(n) for n in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or (option == "--std" and 0 in values):
        raise InputError(
            f"'{text}' is not one number or three (nor may --std be 0)",
            where=option,
            fix=f"for example {option} 127.5 or {option} 123.7,116.3,103.5",
        )
    return values


def _read_labels(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the labels: {error}", where=str(path),
                         fix="give a text file with one class name a line") from error  # fmt: skip


def _targets(entry: Signature, given: dict[str, str]) -> dict[str, Path]:
    """Where each output goes; a .npz takes them all."""
    given = dict(given)
    targets: dict[str, Path] = {}
    if Path(given.get("", "")).suffix == ".npz":
        targets[EVERYTHING] = check_target(Path(given.pop("")))
    named = _named(entry.outputs, given, "output")
    for name, path in named.items():
        if Path(path).suffix != ".npy":
            raise InputError(
                f"cannot write output '{name}' as '{Path(path).suffix}'",
                where=path,
                fix="end the name in .npy (or .npz for all outputs)",
            )
        targets[name] = check_target(Path(path))
    return targets


def _portable(array: Array) -> Array:
    """As other programs can read it: strings as fixed-width bytes, bfloat16 and the like as
    float32."""
    if array.dtype.kind == "O":
        return array.astype(np.bytes_)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _write(results: dict[str, Array], targets: dict[str, Path]) -> None:
    for name, path in targets.items():
        blob = _npz(results) if name == EVERYTHING else _npy(results[name])
        write_atomic(path, blob)


def _npy(array: Array) -> bytes:
    blob = io.BytesIO()
    np.save(blob, array, allow_pickle=False)
    return blob.getvalue()


def _npz(arrays: dict[str, Array]) -> bytes:
    """np.savez takes names as keywords, and so cannot store an output called 'file'."""
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _npy(array))
    return blob.getvalue()


def _record(model: str, results: dict[str, Array], seconds: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": model,
        "seconds": seconds,
        "outputs": {name: _describe(array) for name, array in results.items()},
    }


def _describe(array: Array) -> dict[str, Any]:
    numeric = array.dtype.kind in "fiub" and array.size > 0
    return {
        "type": str(array.dtype),
        "shape": list(array.shape),
        "min": array.min().item() if numeric else None,
        "max": array.max().item() if numeric else None,
        "mean": float(array.mean(dtype=np.float64)) if numeric else None,
        "first": array.reshape(-1)[:8].tolist(),
    }


def _best(scores: Array, names: list[str], count: int) -> list[dict[str, Any]]:
    flat = scores.reshape(-1)
    order = np.argsort(-flat.astype(np.float64), kind="stable")[:count]
    return [{"class": int(i), "label": names[i] if i < len(names) else f"class {i}",
             "score": flat[i].item()} for i in order]  # fmt: skip


def _print(out: Console, record: dict[str, Any]) -> None:
    rows = [
        (name, f"{o['type']}{o['shape']}", *(_number(o[k]) for k in ("min", "max", "mean")),
         " ".join(map(_number, o["first"])))
        for name, o in record["outputs"].items()
    ]  # fmt: skip
    out.print(table("", ["output", "type", ">min", ">max", ">mean", "first values"], rows))
    for name, best in record.get("top", {}).items():
        rows_best = [(b["class"], b["label"], _number(b["score"])) for b in best]
        out.print(table(f"best classes of {name}", [">class", "label", ">score"], rows_best))
    out.print(f"one run took {record['seconds'] * 1e3:.1f} ms, first-run work included")


def _number(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
