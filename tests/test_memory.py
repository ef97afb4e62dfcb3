"""Memory figures, held against known amounts and against /proc itself."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from sanderling import DType, Graph, Model, bench, load, save
from sanderling.measure import process_memory
from sanderling.measure.engine_process import Order
from sanderling.measure.engines import job_for
from sanderling.measure.inputs import feeds
from sanderling.measure.interleaving import Worker
from sanderling.measure.record import Setting

DIGITS = Path(str(files("sanderling") / "data")) / "digits_int8.tflite"
MIB = 2**20
KNOWN = 64 * MIB
SLACK = 4 * MIB  # what Python itself takes between two looks
LINUX = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="needs /proc")

PROBE = """
import json, mmap, re, sys
from sanderling.measure import process_memory
KNOWN = int(sys.argv[1])
looks = {}
def look(name):
    text = open('/proc/self/status').read()
    looks[name] = {'ours': process_memory.snapshot(), 'peak': process_memory.peak(),
                   'resident': process_memory.resident(),
                   'proc': 1024 * int(re.search(r'VmRSS:\\s*(\\d+)', text)[1]),
                   'hwm': 1024 * int(re.search(r'VmHWM:\\s*(\\d+)', text)[1])}
look('start')
reset = process_memory.reset_peak()
block = mmap.mmap(-1, KNOWN); block.write(b'x' * KNOWN)
look('held')
block.close()
look('freed')
process_memory.reset_peak()
look('anew')
with open(sys.argv[2], 'rb') as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
total = sum(mapped[i] for i in range(0, len(mapped), 4096))
look('mapped')
print(json.dumps({'looks': looks, 'reset': reset}))
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> dict:  # type: ignore[type-arg]
    content = tmp_path_factory.mktemp("memory") / "content"
    content.write_bytes(bytes(KNOWN))
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(KNOWN), str(content)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def grown(probe: dict, kind: str, until: str, since: str) -> int:  # type: ignore[type-arg]
    return probe["looks"][until]["ours"][kind] - probe["looks"][since]["ours"][kind]


@LINUX
def test_a_known_allocation_is_seen_and_told_apart(probe: dict) -> None:  # type: ignore[type-arg]
    # An anonymous mapping that is shared counts as shmem, which is no file on disk: it is resident.
    assert abs(grown(probe, "rss", "held", "start") - KNOWN) < SLACK
    assert abs(grown(probe, "rss", "freed", "start")) < SLACK
    assert abs(grown(probe, "file_backed", "mapped", "anew") - KNOWN) < SLACK
    assert abs(grown(probe, "anonymous", "mapped", "anew")) < SLACK


@LINUX
def test_figures_are_those_of_proc(probe: dict) -> None:  # type: ignore[type-arg]
    for look in probe["looks"].values():
        assert abs(look["ours"]["rss"] - look["proc"]) < SLACK
        assert abs(look["resident"] - look["proc"]) < SLACK
        assert abs(look["peak"] - look["hwm"]) < SLACK
        assert look["ours"]["rss"] == look["ours"]["anonymous"] + look["ours"]["file_backed"]
        assert 0 < look["ours"]["pss"] <= look["ours"]["rss"]


@LINUX
def test_the_peak_remembers_until_it_is_reset(probe: dict) -> None:  # type: ignore[type-arg]
    looks = probe["looks"]
    assert looks["freed"]["peak"] - looks["start"]["ours"]["rss"] > KNOWN - SLACK
    if probe["reset"]:
        assert looks["anew"]["peak"] - looks["start"]["ours"]["rss"] < SLACK


def test_without_proc_nothing_is_claimed() -> None:
    assert process_memory.snapshot("none") == {} and process_memory.peak("none") is None
    assert process_memory.growth({}, "peak.runs") is None
    assert process_memory.at_least(2, 3) == 3 and process_memory.at_least(2, None) == 2


# -- a session's own account --------------------------------------------------------------------


def dense(width: int) -> Model:
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, width))
    weights = np.ones((width, width), np.float32)
    y = graph.tensor("y", DType.FLOAT32, (1, width))
    graph.add(
        "FULLY_CONNECTED",
        [x, graph.constant("w", weights), None],
        [y],
        fused_activation_function="NONE",
        keep_num_dims=False,
    )
    graph.outputs = [y]
    return Model([graph])


def test_a_session_tells_what_it_holds() -> None:
    model, width = dense(512), 512
    session = model.compile()
    assert session.memory() == {}  # nothing is planned yet
    session(np.ones((1, width), np.float32))
    found = session.memory()
    assert width * width * 4 <= found["packed_weights"] < 2 * width * width * 4
    assert 0 < found["code"] < MIB and found["arena"] < MIB
    plain = model.compile(["reference"])
    plain(np.ones((1, width), np.float32))
    assert "packed_weights" not in plain.memory()


PLUGIN = f"""
import numpy as np, sanderling
kept = []
def greedy(op, inputs):
    if not kept:
        kept.append(np.ones({KNOWN}, np.uint8))
    passing = np.ones({KNOWN // 2}, np.uint8)
    return inputs[0] + passing[0]
sanderling.register_custom("Greedy", evaluate=greedy, infer=lambda op, specs: specs[0])
"""


@LINUX
def test_bench_finds_a_known_amount(tmp_path: Path) -> None:
    """An operator that keeps 64 MiB and takes 32 for a moment: both are in the figures."""
    plugin = tmp_path / "greedy.py"
    plugin.write_text(PLUGIN, "utf-8")
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 4))
    y = graph.tensor("y", DType.FLOAT32, (1, 4))
    graph.add("custom.Greedy", [x], [y], options=b"")
    graph.outputs = [y]
    path = tmp_path / "greedy.tflite"
    save(Model([graph]), path)
    found = bench(
        path,
        delegates=[("reference",)],
        plugins=[plugin],
        launches=1,
        runs=2,
        min_secs=0,
        warmup_secs=0.01,
    )
    held = found.results[0].memory
    assert abs(held["first.rss"] - held["ready.rss"] - KNOWN) < SLACK
    assert abs(held["end.anonymous"] - held["start.anonymous"] - KNOWN) < SLACK
    assert abs(held["peak.runs"] - held["ready.rss"] - 1.5 * KNOWN) < SLACK
    assert held["file"] == path.stat().st_size


@LINUX
def test_a_peak_that_the_kernel_does_not_keep_is_watched() -> None:
    model = load(DIGITS)
    worker = Worker(job_for(model, Setting(), feeds(model)))
    try:
        ready = worker.ready()
        worker._watched = True  # as where /proc/self/clear_refs may not be written
        worker.turn(Order(0.1))
        seen = worker.usage().memory["peak.runs"]
        assert abs(seen - ready.memory["first.rss"]) < SLACK
    finally:
        worker.close()
