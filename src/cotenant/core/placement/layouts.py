# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which MIG instances one GPU can have side by side.

A GPU has slices of compute and slices of memory. An instance takes some of both, and its slices of memory begin at one
of a few places, so not every sum that fits can be placed. The places are those that `nvidia-smi mig -lgipp` prints.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cotenant.core.model import Gpu
from cotenant.core.units import MiB, MilliGpu


class Shape(NamedTuple):
    """One size of instances."""

    compute: int
    """slices"""
    memory: int
    """slices"""
    starts: tuple[int, ...]
    """slices of memory at which an instance can begin"""


class Geometry(NamedTuple):
    """The slices of a GPU, and the shapes of its instances."""

    compute: int
    memory: int
    shapes: tuple[Shape, ...]


SEVEN = Geometry(
    7,
    8,
    (
        Shape(1, 1, tuple(range(7))),
        Shape(1, 2, (0, 2, 4, 6)),
        Shape(2, 2, (0, 2, 4)),
        Shape(3, 4, (0, 4)),
        Shape(4, 4, (0,)),
        Shape(7, 8, (0,)),
    ),
)
FOUR = Geometry(4, 4, (Shape(1, 1, (0, 1, 2, 3)), Shape(2, 2, (0, 2)), Shape(4, 4, (0,))))
MODELS = {
    "A30": (FOUR, (24,)),
    "A100": (SEVEN, (40, 80)),
    "H100": (SEVEN, (80, 94)),
    "H20": (SEVEN, (96, 141)),
    "H200": (SEVEN, (141,)),
    "GH200": (SEVEN, (96, 144)),
    "B200": (SEVEN, (180,)),
}
"""by a word of the name of the GPU; the sizes are GB, for names that do not say it"""
_USABLE = 95
"""percent of its slices of memory that an instance has at least; the driver keeps the rest"""


class Profile(NamedTuple):
    """A kind of instance of one GPU."""

    name: str
    shape: Shape
    memory: MiB
    compute: MilliGpu
    """of the whole GPU"""


def profiles_of(gpu_type: str, memory: MiB | None = None, present: Sequence[str] = ()) -> tuple[Profile, ...]:
    """The profiles of a GPU, smallest first; empty if it cannot be partitioned, or its profiles are not known.

    If its memory is not known, it is the size by which the names of the instances that it has are right.
    """
    model = _model(gpu_type)
    if model is None:
        return ()
    geometry, sizes = model
    named = [int(size) for size in re.findall(r"(\d{2,3})GB", gpu_type)]
    for size in [-(-memory // 1024)] if memory else [*named, *sizes]:
        found = tuple(_profile(geometry, shape, size) for shape in geometry.shapes)
        if {base_name(name) for name in present} <= {one.name for one in found}:
            return found
    return ()


def _model(gpu_type: str) -> tuple[Geometry, tuple[int, ...]] | None:
    return next((MODELS[word] for word in re.split(r"[\s-]", gpu_type) if word in MODELS), None)


def base_name(profile: str) -> str:
    """Without media extensions and the like, which change nothing about its slices."""
    return re.split(r"[+-]", profile)[0]


def _profile(geometry: Geometry, shape: Shape, size: int) -> Profile:
    gigabytes = (2 * size * shape.memory + geometry.memory) // (2 * geometry.memory)  # rounded, as NVIDIA does
    memory = MiB(1024 * size * shape.memory // geometry.memory * _USABLE // 100)
    return Profile(f"{shape.compute}g.{gigabytes}gb", shape, memory, MilliGpu(1000 * shape.compute // geometry.compute))


def wasted_compute(gpu_type: str, profiles: Sequence[Profile]) -> int:
    """Slices of compute that no further instance can have, because these leave too little memory beside them."""
    model = _model(gpu_type)
    if model is None:
        return 0
    free = model[0].compute - sum(one.shape.compute for one in profiles)
    return max(0, free - (model[0].memory - sum(one.shape.memory for one in profiles)))


def can_coexist(gpu_type: str, profiles: Sequence[Profile]) -> bool:
    """Whether one GPU can have all these instances at the same time."""
    model = _model(gpu_type)
    if model is None:
        return False
    geometry = model[0]
    if sum(one.shape.compute for one in profiles) > geometry.compute:
        return False
    largest_first = sorted((one.shape for one in profiles), key=lambda shape: -shape.memory)
    return next(_arrangements(largest_first, geometry.memory, 0), None) is not None


def _arrangements(shapes: Sequence[Shape], slices: int, taken: int) -> Iterator[int]:
    """Bits of the slices of memory that are taken, for each way to place these shapes beside those already placed."""
    if not shapes:
        yield taken
        return
    first, rest = shapes[0], shapes[1:]
    for start in first.starts:
        bits = ((1 << first.memory) - 1) << start
        if start + first.memory <= slices and not taken & bits:
            yield from _arrangements(rest, slices, taken | bits)


def partitioned_type(instance: Gpu) -> str:
    """The type of the GPU that was partitioned into this instance and others."""
    return instance.type.rpartition(" MIG ")[0]
