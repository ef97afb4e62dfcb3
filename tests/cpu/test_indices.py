"""Indices that only the run knows: one out of range raises, as the definitions do, on every way to
run a model; and the session goes on."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import Interpreter, load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.errors import ModelError
from sanderling.format import dump
from sanderling.ir import Array, Graph, Model, Tensor
from sanderling.runtime.recorder import record
from sanderling.runtime.session import Session
from tests.conformance.cases_control import binary, choose, const, emit
from tests.conformance.harness import Case, T, case, f32, i16, i32, i64, weights
from tests.support import shared_models
from tests.support.cpu_conformance import RUNNABLE, cpu_for, run
from tests.support.every_worker import share_everything


def row(made: Case, limit: int) -> tuple[Case, int]:
    return made, limit


# The last operand of integers holds the indices; `limit` is the first that is too large.
CASES = [
    row(case("GATHER", f32(4, 5), i32(3), axis=0), 4),
    row(case("GATHER", f32(2, 4, 300), i16(3), axis=1), 4),
    row(case("GATHER", f32(2, 6, 3), i64(2, 3), axis=1, batch_dims=1), 6),
    row(case("GATHER_ND", f32(3, 3, 2), i32(4, 2)), 3),
    row(case("SCATTER_ND", i32(4, 1), f32(4, 3), T((2,), "i32", data=[5, 3]), out=[f32()]), 5),
    row(case("EMBEDDING_LOOKUP", i32(3), f32(7, 4), out=[f32()]), 7),
    row(case("EMBEDDING_LOOKUP", i32(3), weights(7, 4, dtype="i8", scale=0.1), out=[f32()]), 7),
    row(case("REVERSE_SEQUENCE", f32(3, 5), i32(3), seq_dim=1), 6),
]
IDS = [f"{made.op}-{place}" for place, (made, _) in enumerate(CASES)]
each = pytest.mark.parametrize(("made", "limit"), CASES, ids=IDS)


@pytest.fixture(autouse=True)
def every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are small here; they get the workers that are asked for."""
    share_everything(monkeypatch)


def is_index(tensor: Tensor) -> bool:
    return tensor.dtype.is_integer and not tensor.is_constant


def feeds(model: Model, value: int) -> list[Array]:
    """Ones; the last of the indices is this value."""
    found = []
    for tensor in model.main.inputs:
        array = np.ones(tensor.shape, tensor.dtype.numpy)
        if is_index(tensor):
            array.reshape(-1)[-1] = value
        found.append(array)
    return found


def said(session: Session, *arrays: Array) -> str:
    with pytest.raises(ModelError) as caught:
        run(session, arrays)
    return str(caught.value)


@pytest.mark.parametrize("target", RUNNABLE)
@each
def test_it_raises_as_the_reference_does(made: Case, limit: int, target: str) -> None:
    model = made.model()
    reference = model.compile(["reference"])
    for threads in (1, 3):
        ours = model.compile([cpu_for(target)], threads=threads)
        assert [p.delegate.name for p in ours.plan().partition.parts] == ["cpu"]
        for wild in (limit, -1, -(2**15), 2**15 - 1):
            arrays = feeds(model, wild)
            text = said(ours, *arrays)
            assert text == said(reference, *arrays)
            assert made.op in text and str(wild) in text and f"0 to {limit - 1}" in text
            good = feeds(model, limit - 1)  # the session goes on
            for a, b in zip(run(ours, good), run(reference, good), strict=True):
                assert np.array_equal(a, b)


@each
def test_bound_runs_and_interpreters_raise(made: Case, limit: int) -> None:
    model = made.model()
    session = model.compile([CpuDelegate(cache=False)])
    held = {t.name: a for t, a in zip(model.main.inputs, feeds(model, 1), strict=True)}
    bound = session.bind(held)
    interpreter = Interpreter(model_content=dump(model), experimental_delegates=["cpu"])
    interpreter.allocate_tensors()
    for value, raises in ((1, False), (limit, True), (limit - 1, False)):
        for tensor, array in zip(model.main.inputs, feeds(model, value), strict=True):
            held[tensor.name][...] = array
        for place, array in enumerate(feeds(model, value)):
            details = interpreter.get_input_details()[place]
            interpreter.set_tensor(details["index"], array)
        for call, error in ((bound.run, ModelError), (interpreter.invoke, RuntimeError)):
            if raises:
                with pytest.raises(error, match=f"{limit} is not in 0 to {limit - 1}"):
                    call()
            else:
                call()


def test_recorded_runs_raise() -> None:
    model = CASES[0][0].model()
    with record():
        session = model.compile([CpuDelegate(cache=False)], threads=2)
        assert "4 is not in 0 to 3" in said(session, *feeds(model, 4))
        run(session, feeds(model, 3))
    assert "4 is not in 0 to 3" in said(session, *feeds(model, 4))


def test_a_kept_compilation_raises(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    model = CASES[0][0].model()
    for _ in range(2):
        session = model.compile([CpuDelegate()])
        assert "4 is not in 0 to 3" in said(session, *feeds(model, 4))


def test_a_branch_raises_when_it_is_taken() -> None:
    def picked(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
        row = emit(g, "RESHAPE", [a, const(g, [6], "i32")], (6,))
        return [emit(g, "GATHER", [row, emit(g, "CAST", [b], (2, 3), "i32")], (2, 3), axis=0)]

    session = Model(choose(picked, binary("ADD"))).compile([CpuDelegate(cache=False)])
    assert [p.delegate.name for p in session.plan().partition.parts] == ["cpu"]
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 6, np.float32)
    assert "6 is not in 0 to 5" in said(session, np.array(True), a, b)
    assert np.array_equal(run(session, [np.array(False), a, b])[0], a + b)


@shared_models.NEEDS
def test_the_public_file() -> None:
    model = load(shared_models.model("found/litert_simple_scatter_nd"))
    places = np.int32([[0, 1, 3, 0], [0, 1, 5, 0]])
    texts = [said(model.compile([d]), places) for d in ("cpu", "reference")]
    assert texts[0] == texts[1]
    assert "SCATTER_ND" in texts[0] and "5 is not in 0 to 3" in texts[0]
