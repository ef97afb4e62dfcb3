"""Starting again: a known file is run without reading its ops, and only while it is that file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import Interpreter, dump, load, profile, save, store
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime import cache
from sanderling.errors import CacheWarning, ModelError
from sanderling.format import known_models
from sanderling.format.known_models import KnownModel
from sanderling.ir import Array, Model
from sanderling.ir.compare import models_equal
from tests.support.conv_stacks import feed, stack

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    made_by = store._compiler()
    monkeypatch.setattr(store, "_who", lambda: made_by)
    monkeypatch.setattr(known_models, "SETTLED_NS", 0)
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model's file that was run once."""
    save(stack(), tmp_path / "model.tflite")
    run(load(tmp_path / "model.tflite"))
    cache._loaded.clear()
    return tmp_path / "model.tflite"


def run(model: Model) -> Array:
    return answer(model, feed(stack()))


def answer(model: Model, x: Array) -> Array:
    found: Array = model.compile([CpuDelegate()])(x)
    return found


def is_read(model: Model) -> bool:
    return not isinstance(model, KnownModel) or any(g.is_read for g in model._own)


def expected(model: Model) -> Array:
    found: Array = model.compile([CpuDelegate(cache=False)])(feed(stack()))
    return found


def test_a_known_file_is_run_without_reading_its_ops(path: Path) -> None:
    model = load(path)
    np.testing.assert_array_equal(run(model), expected(stack()))
    assert not is_read(model)


def test_nothing_is_imported_that_is_not_run(path: Path) -> None:
    """Neither LLVM nor the kernels, nor what operators mean."""
    code = textwrap.dedent(f"""
        import sys
        import numpy as np
        import sanderling
        model = sanderling.load({str(path)!r})
        session = model.compile(["cpu"])
        x = session.entry(None).inputs
        session.run({{n: np.zeros(t.shape, t.dtype.numpy) for n, t in x.items()}})
        interpreter = sanderling.Interpreter({str(path)!r}, experimental_delegates=["cpu"])
        interpreter.allocate_tensors()
        (about,) = interpreter.get_input_details()
        interpreter.set_tensor(about["index"], np.zeros(about["shape"], about["dtype"]))
        interpreter.invoke()
        interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        mine = "ops", "passes", "delegates.cpu.table", "ir.verify"
        names = "llvmlite", *("sanderling." + name for name in mine)
        print([name for name in names if name in sys.modules])
    """)
    done = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
        )
        for _ in range(2)
    ]
    assert done[1].stdout == "[]\n", done[1].stdout + done[1].stderr


def test_a_warm_start_imports_nothing_more(path: Path) -> None:
    """Modules come with the name of the interpreter, not with the first model."""
    code = textwrap.dedent(f"""
        import sys
        import numpy as np
        from sanderling import Interpreter
        before = set(sys.modules)
        interpreter = Interpreter({str(path)!r})
        interpreter.allocate_tensors()
        (about,) = interpreter.get_input_details()
        interpreter.set_tensor(about["index"], np.zeros(about["shape"], about["dtype"]))
        interpreter.invoke()
        print(sorted(name for name in set(sys.modules) - before if "sanderling" in name))
    """)
    done = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
        )
        for _ in range(2)
    ]
    assert done[1].stdout == "[]\n", done[1].stdout + done[1].stderr


def test_what_is_asked_for_is_read(path: Path) -> None:
    whole, late = stack(), load(path)
    assert not is_read(late)
    border = late.main.inputs[0]
    assert (border.name, border.shape) == (whole.main.inputs[0].name, whole.main.inputs[0].shape)
    assert border.users == [late.main.ops[0]] and border.producer is None
    assert is_read(late) and late.main.tensors[late.main.tensors.index(border)] is border
    assert models_equal(late, load(path)) is None


def test_the_record_says_what_the_file_says(path: Path) -> None:
    late = load(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDERLING_CACHE", "off")
        eager = load(path)
    assert isinstance(late, KnownModel) and not isinstance(eager, KnownModel)
    assert known_models.describe(late) == known_models.describe(eager)
    mine, other = late.main.outputs[0].quant, eager.main.outputs[0].quant
    assert mine is not None and mine.same_as(other)


def test_plans_can_be_looked_at(path: Path) -> None:
    session = load(path).compile([CpuDelegate()])
    before = session(feed(stack()))
    assert not is_read(session.model)
    plan = session.plan()
    assert plan.is_whole and plan is session.plan()
    assert sum(len(p.ops) for p in plan.partition.parts) == len(plan.graph.ops) > 1
    assert "ops on cpu" in session.explain()
    np.testing.assert_array_equal(session(feed(stack())), before)


def test_a_bound_run_says_whose_steps_it_counts(path: Path) -> None:
    """From disk it runs another plan than the one that can be looked at; a profile watches its own
    as well."""
    for kept in (False, True):
        session = load(path).compile([CpuDelegate(timed=True)], threads=1)
        bound = session.bind({session.model.main.inputs[0].name: feed(stack())})
        bound.run()
        assert bound.plan.is_whole is not kept and session.plan().is_whole
        bound.run()
        (step,) = bound.plan.steps
        counted: Any = step.executable
        assert counted.times.any()
        told = profile(load(path), threads=1, runs=2, with_roofline=False)
        assert all(row["median_ms"] > 0 for row in told["steps"])


def test_an_edit_in_memory_counts(path: Path) -> None:
    model = load(path)
    tensor = model.main.find("w1")
    assert tensor.data is not None
    tensor.data = tensor.data // 2
    found = run(model)
    np.testing.assert_array_equal(found, expected(model))
    assert not np.array_equal(found, run(load(path)))


def test_an_edit_after_the_session_was_made_counts(path: Path) -> None:
    model = load(path)
    session = model.compile([CpuDelegate()])
    tensor = model.main.find("w1")
    assert tensor.data is not None
    tensor.data = tensor.data // 2
    np.testing.assert_array_equal(session(feed(stack())), expected(model))


@pytest.mark.parametrize("edit", ["shape", "quant", "name", "inputs", "graphs"])
def test_an_edit_of_the_border_counts(path: Path, edit: str) -> None:
    """Though it can be made without reading an op."""
    model = load(path)
    border = model.main.inputs[0]
    assert known_models.content_of(model) and border.quant is not None
    if edit == "shape":
        border.shape = (1, *border.shape[1:-1], border.shape[-1] + 1)
    elif edit == "quant":
        border.quant.scale[0] *= 2
    elif edit == "name":
        border.name = "other"
    elif edit == "inputs":
        model.main.inputs.append(model.main.outputs[0])
    else:
        model.graphs.append(stack().main)
    assert not known_models.content_of(model)


@pytest.mark.parametrize("in_place", [True, False])
def test_another_file_in_its_place_is_seen(path: Path, in_place: bool) -> None:
    """Even one of the same size and with the same time of change."""
    before, other = path.stat(), path.with_name("other")
    save(stack(seed=7), other)
    assert other.stat().st_size == before.st_size
    if in_place:
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    model = load(path)
    np.testing.assert_array_equal(run(model), expected(stack(seed=7)))
    assert not np.array_equal(run(load(path)), expected(stack()))


def test_a_model_that_is_not_the_file_at_its_source(tmp_path: Path) -> None:
    """A copy that names the file, or the file replaced while its model was compiled."""
    path = tmp_path / "model.tflite"
    save(stack(), path)
    held, copy = load(path), load(bytes(dump(renamed(load(path)))))
    copy.source = str(path)
    run(copy)
    assert load(path).main.inputs[0].name == held.main.inputs[0].name
    save(renamed(load(path)), path)
    run(held)
    assert load(path).main.inputs[0].name == "another"
    run(load(path))


def renamed(model: Model) -> Model:
    model.main.inputs[0].name = "another"
    return model


def test_damage_to_a_known_file_is_refused(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[: len(raw) // 2] = raw[: len(raw) // 2].replace(b"\x04\x00\x00\x00", b"\xff\xff\xff\x7f")
    raw[4:8] = b"TFL3"
    path.write_bytes(raw)
    with pytest.raises(ModelError) as known_file:
        run(load(path))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ModelError) as any_file:
        patch.setenv("SANDERLING_CACHE", "off")
        run(load(path))
    assert str(known_file.value) == str(any_file.value)


def test_a_copy_and_bytes_are_recognised(path: Path) -> None:
    copy = path.with_name("copy.tflite")
    copy.write_bytes(path.read_bytes())
    for source in (copy, copy.read_bytes()):
        model = load(source)
        np.testing.assert_array_equal(run(model), expected(stack()))
        assert not is_read(model)
    assert not isinstance(load(bytearray(copy.read_bytes())), KnownModel)


def test_a_settled_file_is_not_read_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(path)
    monkeypatch.setattr(known_models, "digest", lambda data: pytest.fail("the file was read"))
    assert isinstance(load(path), KnownModel)
    monkeypatch.setattr(known_models, "SETTLED_NS", 10**15)
    with pytest.raises(pytest.fail.Exception):  # it could have changed within the clock's tick
        load(path)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [("seen", "flip"), ("model", "flip"), ("plan", "flip"), ("model", "cut"), ("plan", "empty")],
)
def test_damaged_records_are_made_anew(path: Path, folder: Path, kind: str, spoil: str) -> None:
    load(path)
    for record in folder.glob(f"*.{kind}"):
        raw = bytearray(record.read_bytes())
        raw[-3] ^= 1
        record.write_bytes(raw[: {"cut": 20, "empty": 0}.get(spoil, len(raw))])
    with pytest.warns(CacheWarning, match="made anew"):
        np.testing.assert_array_equal(run(load(path)), expected(stack()))
    run(load(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(path)
        np.testing.assert_array_equal(run(model), expected(stack()))
    assert not is_read(model)


def forge(path: Path, change: Callable[[Any], object], name: str = "") -> None:
    """Another content with a checksum that fits."""
    said, content = json.loads(path.read_bytes()[len(store._RECORD) + store.DIGEST :])
    changed = change(content)
    text = json.dumps([name or said, content if changed is None else changed]).encode()
    path.write_bytes(store._RECORD + hashlib.sha256(text).digest() + text)


CHANGES: list[tuple[str, Callable[[Any], object]]] = [
    ("plan", lambda r: r.pop("steps")),
    ("plan", lambda r: r["inputs"].append(99)),
    ("plan", lambda r: r["inputs"].clear()),
    ("plan", lambda r: r["tensors"][0].__setitem__(1, "NONE")),
    ("plan", lambda r: r["tensors"][0].__setitem__(2, [1, 1])),
    ("plan", lambda r: r["tensors"][1].__setitem__(2, [1, 1])),
    ("plan", lambda r: r["tensors"][1].__setitem__(1, "FLOAT64")),
    ("plan", lambda r: r["steps"][0].__setitem__(0, 7)),
    ("plan", lambda r: r["steps"][0].__setitem__(2, [])),
    ("plan", lambda r: [1, 2]),
    ("seen", lambda r: [1]),
    ("seen", lambda r: ["../elsewhere", "x"]),
    ("model", lambda r: 5),
    ("model", lambda r: [r[0], {}]),
    ("model", lambda r: r[1]["graphs"][0].pop()),
    ("model", lambda r: r[1]["graphs"][0][1].append(99)),
    ("model", lambda r: r[1]["signatures"].append(["key", 9, {}, {}])),
]


@pytest.mark.filterwarnings("ignore::sanderling.errors.CacheWarning")
def test_wrong_records_with_a_right_checksum(path: Path, folder: Path) -> None:
    load(path)
    good = {p: p.read_bytes() for p in folder.iterdir()}
    for kind, change in CHANGES:
        for name, content in good.items():
            name.write_bytes(content)
        for record in folder.glob(f"*.{kind}"):
            forge(record, change)
        cache._loaded.clear()
        np.testing.assert_array_equal(run(load(path)), expected(stack()))


def test_a_record_under_anothers_name(path: Path, folder: Path) -> None:
    for record in folder.glob("*.plan"):
        forge(record, lambda r: None, "another")
    with pytest.warns(CacheWarning, match="another entry's"):
        np.testing.assert_array_equal(run(load(path)), expected(stack()))


def test_a_plan_whose_code_is_gone_is_made_anew(path: Path, folder: Path) -> None:
    for part in folder.glob("*.part"):
        part.unlink()
    np.testing.assert_array_equal(run(load(path)), expected(stack()))
    assert list(folder.glob("*.part"))


def test_settings_have_plans_of_their_own(path: Path, folder: Path) -> None:
    def plans() -> int:
        return len(list(folder.glob("*.plan")))

    assert plans() == 1
    x = feed(stack())
    for delegates in (["reference"], [CpuDelegate(timed=True), "reference"]):
        model = load(path)
        model.compile(delegates)(x)
        assert is_read(model)
    wide = np.concatenate([x, x])
    model = load(path)
    np.testing.assert_array_equal(answer(model, wide)[:1], expected(stack()))
    assert plans() == 3
    again = load(path)
    np.testing.assert_array_equal(answer(again, wide)[:1], expected(stack()))
    assert not is_read(again)


def test_the_interpreter_starts_warm(path: Path) -> None:
    made = Interpreter(str(path), experimental_delegates=["cpu"])
    made.allocate_tensors()
    (about,), (result,) = made.get_input_details(), made.get_output_details()
    made.set_tensor(about["index"], feed(stack()))
    made.invoke()
    np.testing.assert_array_equal(made.get_tensor(result["index"]), expected(stack()))
    assert not is_read(made._session.model)
    everything = made.get_tensor_details()
    assert everything[about["index"]]["name"] == about["name"]
    assert len(everything) == len(stack().main.tensors)
    np.testing.assert_array_equal(made.get_tensor(result["index"]), expected(stack()))


def test_off_is_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", "off")
    assert not isinstance(load(path), KnownModel)
