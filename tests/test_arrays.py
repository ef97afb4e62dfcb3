"""What is said of values that differ is short, and right."""

from __future__ import annotations

import numpy as np

from .support.array_differences import unlike


def test_large_arrays_are_told_in_a_screen() -> None:
    ours = [np.zeros((9, 10, 10), np.float32) for _ in range(50)]
    theirs = [a.copy() for a in ours]
    theirs[7] += 1
    said = unlike(ours, theirs)
    assert said.count("\n") <= 10 and len(said) < 1000
    assert said.startswith("[7] float32 (9, 10, 10): 900 of 900 differ, by 1 at most")


def test_differences_are_found() -> None:
    a = np.array([1.0, np.nan, np.inf], np.float32)
    assert unlike({"x": a, "n": 1}, {"x": a.copy(), "n": 1}) == ""
    assert "keys" in unlike({"x": a}, {"y": a})
    assert "float64" in unlike(a.astype(np.float64), a)
    assert "1 of 3" in unlike(a, np.array([1.0, 2.0, np.inf], np.float32))
    assert "1 of 3" in unlike(np.array([1, 2, 3]), np.array([1, 2, 4]))
    assert "expected 2" in unlike([1], [2])


def test_a_share_is_of_the_largest() -> None:
    theirs = np.array([100.0, 0.0], np.float32)
    assert unlike(theirs + np.float32(0.0005), theirs, 1e-5) == ""
    assert unlike(theirs + np.float32(0.002), theirs, 1e-5)
    assert unlike(np.array([100, 1]), np.array([100, 0]), 1.0)  # integers are exact
