"""Tensors and weights in images and textures: each form is forced on a device that has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sanderling.delegates.gpu.devices.device import Device
from sanderling.delegates.gpu.recipe import ARENA, BORDER, WEIGHTS
from tests.conformance.harness import Case
from tests.support.gpu_conformance import EVERYTHING, cases_of, check_gpu
from tests.support.gpu_devices import Pinned, check_answers, devices_of, needs_opencl, twin

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
with_images = [device for device in devices_of("opencl") if device.offers.images]
pytestmark = [needs_opencl, pytest.mark.skipif(not with_images, reason="no device has images")]
FORMS = ("image", "texture")
# Kernels that read vectors, single elements, whole numbers and truths, and write each of them.
OPS = (
    "ADD", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "SOFTMAX", "MEAN", "TRANSPOSE",
    "CONCATENATION", "STRIDED_SLICE", "ARG_MAX", "GATHER", "LESS",
)  # fmt: skip
ROWS = [row for row in cases_of(*OPS) if "special" not in row.id]
NUMBERS = range(len(with_images) if EVERYTHING else 1)  # kernels with images take long to build


@pytest.fixture(name="device")
def _device() -> Device:
    return with_images[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", ROWS if EVERYTHING else ROWS[1::6], ids=lambda row: row.id)
def test_case(row: Case, form: str) -> None:
    check_gpu(row, storage=form)


@pytest.mark.parametrize("form", ("buffer", *FORMS))
@pytest.mark.parametrize("precision", ["f32", "f32_f16"])
@pytest.mark.parametrize("number", NUMBERS)
def test_answers_and_places(number: int, precision: str, form: str) -> None:
    """What the delegate keeps has the form; what the caller has is a buffer."""
    tolerance = 1e-4 if precision == "f32" else 2e-2
    delegate = Pinned(with_images[number], storage=form, precision=precision)
    places = check_answers(delegate, tolerance, channels=5).executable.recipe.places
    assert {p.form for p in places if p.kind in (ARENA, WEIGHTS)} == {form}
    assert {p.form for p in places if p.kind == BORDER} == {"buffer"}
    if form != "buffer":
        wanted = {"f32"} if precision == "f32" else {"f16"}
        assert {p.element for p in places if p.kind in (ARENA, WEIGHTS)} == wanted


@pytest.mark.parametrize("form", FORMS)
def test_what_is_too_large_for_an_image_is_a_buffer(form: str, device: Device) -> None:
    small = twin(device)
    small.offers = replace(device.offers, image_vectors=20, texture=(4, 5))
    recipe = check_answers(Pinned(small, storage=form)).executable.recipe
    kept = [place for place in recipe.places if place.kind in (ARENA, WEIGHTS)]
    assert {place.form for place in kept} == {form, "buffer"}
    assert all(place.nbytes <= 20 * 16 for place in kept if place.form == form)


def test_the_class_of_the_device_says_the_form(device: Device) -> None:
    adreno = twin(device)
    adreno.offers = device.offers.in_form("texture")
    recipe = check_answers(Pinned(adreno)).executable.recipe
    assert {place.form for place in recipe.places if place.kind == WEIGHTS} == {"texture"}
