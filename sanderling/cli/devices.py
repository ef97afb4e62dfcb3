"""`sanderling devices`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from ..measure.devices.at_hand import AtHand, Gpu, Phone, at_hand
from ..tables import table
from ..units import byte_size
from .common import JsonPath, JsonTarget, say
from .device import AdbPath

SCHEMA = "sanderling.devices/1"
GPUS = (
    "number", "~device", "interface", "~driver", "class", ">memory", "storage", ">work group",
    "half", "images", "sub-groups", "shares memory",
)  # fmt: skip
PHONES = ("phone", "state", "~model", "CPU", "Android", "~GPU", "class")


def devices(adb: AdbPath = "adb", json: JsonPath = "") -> None:
    """List the devices that models can run on: GPUs and what else has a driver, and phones.

    The number of a device is that of `--delegate gpu:NUMBER`. Class is our row of it, which says in
    which form tensors are stored and how large work groups are.
    """
    with JsonTarget(json) as target:
        found = at_hand(adb)
        if not target.write(record(found)):
            typer.echo(shown(found))
    for remark in found.remarks:
        say(remark)


def record(found: AtHand) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "gpus": [gpu.record() for gpu in found.gpus],
        "phones": [asdict(phone) for phone in found.phones],
        "remarks": found.remarks,
    }


def shown(found: AtHand) -> str:
    parts = [table(GPUS, map(_gpu, found.gpus)), table(PHONES, map(_phone, found.phones))]
    return "\n\n".join(filter(None, parts)) or "there is no device here"


def _gpu(gpu: Gpu) -> list[object]:
    o = gpu.offers
    groups = "-" if o.subgroups is None else " to ".join(map(str, sorted(set(o.subgroups))))
    return [
        gpu.number,
        o.name,
        o.interface,
        o.driver,
        o.kind.name,
        byte_size(o.memory),
        gpu.form,
        o.group,
        _yes(o.half),
        _yes(o.images),
        groups,
        _yes(o.shares_memory),
    ]


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _phone(phone: Phone) -> list[object]:
    return [
        phone.serial,
        phone.state,
        phone.model,
        phone.abi,
        phone.android,
        phone.gpu,
        phone.gpu_class,
    ]
