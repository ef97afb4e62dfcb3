"""Real models and data that may lie beside the repository; tests that need them skip without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SANDERLING_SHARED", Path(__file__).parents[3] / "shared"))
MODELS = sorted((ROOT / "models").glob("*.tflite"))
NEEDS = pytest.mark.skipif(not MODELS, reason="no ../shared/models beside the repository")


def model(name: str) -> Path:
    return ROOT / "models" / f"{name}.tflite"
