"""What a shell offers when Tab is pressed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app
from sanderling.cli.completion import list_of


def offered(line: str) -> list[str]:
    """As bash asks: the words, and which of them is being written."""
    words = line.split(" ")
    env = {
        "_SANDERLING_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(app, [], env=env, prog_name="sanderling")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.mark.parametrize("line, some", [
    ("sanderling ", "run inspect bench quantize"),
    ("sanderling qu", "quantize"),
    ("sanderling eval co", "coco"),
    ("sanderling run --pic", "--picture"),
    ("sanderling run --delegate ", "cpu reference"),
    ("sanderling profile --engine lite", "litert"),
    ("sanderling bench --engines sanderling,lite", "sanderling,litert"),
    ("sanderling quantize --mode int", "int8 int16x8"),
    ("sanderling quantize --task key", "keypoints"),
    ("sanderling diff --preset yo", "yolox"),
    ("sanderling eval coco --engine o", "openvino onnxruntime"),
])  # fmt: skip
def test_what_is_offered(line: str, some: str) -> None:
    assert set(some.split()) <= set(offered(line))


@pytest.mark.parametrize("line", ["sanderling run ", "sanderling run m.tflite --input "])
def test_files_are_left_to_the_shell(line: str) -> None:
    assert offered(line) == []


def test_lists_offer_what_is_not_there_yet() -> None:
    assert list_of(lambda: ("cpu", "reference"))("cpu,") == ["cpu,reference"]


def test_the_script_is_printed() -> None:
    env = {"_SANDERLING_COMPLETE": "source_bash"}
    text = CliRunner().invoke(app, [], env=env, prog_name="sanderling").stdout
    assert "complete -o default -F _sanderling_completion sanderling" in text
