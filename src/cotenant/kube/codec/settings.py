# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which dialects a cluster speaks, and what is meant where a pod does not say."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.kube.codec.amd import AMD
from cotenant.kube.codec.cambricon import CAMBRICON, CAMBRICON_SMLU
from cotenant.kube.codec.dialect import VENDORS, Dialect
from cotenant.kube.codec.gpushare import GPUSHARE
from cotenant.kube.codec.iadeep import IADEEP
from cotenant.kube.codec.keys import is_key
from cotenant.kube.codec.topology import TOPOLOGY
from cotenant.kube.codec.vgpu import VGPU
from cotenant.wire.text import printable

DIALECTS = (VGPU, GPUSHARE, TOPOLOGY, IADEEP, CAMBRICON, CAMBRICON_SMLU, AMD)
MOST_GPUS = 1024
"""of one pod"""
MOST_MEMORY = MiB((1 << 20) - 1)
"""on one card: less than 1 TiB, so that somebody who means bytes is told"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How requests are read; other names of resources are other dialects: `replace(VGPU, count=...)`."""

    dialects: tuple[Dialect, ...] = DIALECTS
    default_gpus: int = 1
    """where memory or compute is asked for and no number of cards"""
    default_memory: MiB | None = None
    """on each card, where none is asked for; None: all that the card has"""
    default_compute: Percent = Percent(0)
    """of each card, where none is asked for but a part of its memory; 0 claims nothing and is not held back"""

    by_resource: Mapping[str, Dialect] = field(default_factory=dict, init=False, repr=False, compare=False)
    """whose word each resource is"""

    def __post_init__(self) -> None:
        if len({dialect.name for dialect in self.dialects}) != len(self.dialects):
            raise InputError("two dialects have the same name")
        names = [name for dialect in self.dialects for name in dialect.resources]
        for name in names:
            if "/" not in name or not is_key(name):
                raise InputError(f"resource {printable(name[:80])!r}: expected a name such as example.com/gpu")
            if names.count(name) > 1:
                raise InputError(f"resource {name}: means two things; dialects need names of their own")
        for dialect in self.dialects:
            if dialect.name not in VENDORS:
                raise InputError(f"dialect {dialect.name}: no row of the table of vendors names it")
        owners = {name: dialect for dialect in self.dialects for name in dialect.resources}
        object.__setattr__(self, "by_resource", owners)
        _within("default GPUs", self.default_gpus, 1, MOST_GPUS)
        _within("default memory in MiB", 1 if self.default_memory is None else self.default_memory, 1, MOST_MEMORY)
        _within("default compute in percent", self.default_compute, 0, 100)


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{what}: {value}, expected {least} to {most}")


DEFAULTS = Settings()
