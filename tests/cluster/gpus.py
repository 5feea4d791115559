# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs for the nodes of a test cluster: a stand-in driver, and a container runtime that hands it out (`runtime.py`).

The name of a GPU says whose it is; a node has GPUs of one vendor, and that vendor's container runtime.
"""

import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.node.devices.vendors import Vendor, vendor_of_type
from cotenant.node.mps_daemon import CONTROL
from tests.native import kit

RUNTIME = Path(__file__).with_name("runtime.py")
LIBRARIES = {"x86_64": "/usr/lib/x86_64-linux-gnu", "aarch64": "/usr/lib/aarch64-linux-gnu"}
"""where a container's loader looks"""
MOST = 16
BROUGHT = {
    Vendor.NVIDIA: ("libcuda.so.1", "libnvidia-ml.so.1"),
    Vendor.CAMBRICON: ("libcndev.so",),
    Vendor.AMD: ("librocm_smi64.so",),
}
"""what the vendor's runtime brings into a container"""


class GpuModel(NamedTuple):
    """A GPU."""

    name: str
    memory_mib: int
    numa: int | None = None
    nvlinks: str = ""
    """what is at the far ends: `1+1` is two links to GPU 1, `s0` one to NVSwitch 0"""
    mig: str = "-"
    """profiles of its MIG instances, with slashes between them; `-`: not in MIG mode"""
    capability: str = "8.0"
    """compute capability"""


def uuid(node: int, index: int) -> str:
    """The UUID of a node's card; nodes count from 1, cards from 0."""
    return f"GPU-00000000-0000-0000-0000-{_first(node) + index:012x}"


def _first(node: int) -> int:
    return MOST * (node - 1) + 1


def instance_uuid(node: int, index: int, number: int) -> str:
    """The UUID of a MIG instance of a node's card; instances of all cards of a node count from 1."""
    return f"MIG-00000000-0000-0000-{number:04x}-{_first(node) + index:012x}"


def _mps(folder: Path) -> Path:
    """The stand-in of MPS, as a program for containers."""
    program = folder / CONTROL
    program.write_text(f"#!/usr/bin/python3 -IS\n{(kit.NATIVE / 'standin' / 'mps_control.py').read_text()}")
    program.chmod(0o755)
    return program


def write_runtime(folder: Path, node: int, cards: Sequence[GpuModel], runc: Path) -> Path:
    """The program that a node's containerd calls instead of runc, if the node has these cards."""
    vendor = vendor_of_type(cards[0].name)
    about = folder / "gpus.json"
    about.write_text(
        json.dumps(
            {
                "driver": str(kit.standin()),
                "variable": vendor.row.runtime_variable,
                "brought": BROUGHT[vendor],
                "programs": [str(_mps(folder))] if vendor is Vendor.NVIDIA else [],
                "libraries": LIBRARIES[platform.machine()],
                "uuids": [uuid(node, index) for index in range(len(cards))],
                "settings": {
                    "STANDIN_DEVICES": str(len(cards)),
                    "STANDIN_FIRST": str(_first(node)),
                    "STANDIN_NAMES": ",".join(card.name for card in cards),
                    "STANDIN_MEMORY_MIB": ",".join(str(card.memory_mib) for card in cards),
                    "STANDIN_NUMA": ",".join("-1" if card.numa is None else str(card.numa) for card in cards),
                    "STANDIN_NVLINKS": ",".join(card.nvlinks for card in cards),
                    "STANDIN_MIG": ",".join(card.mig for card in cards),
                    "STANDIN_CAPABILITY": ",".join(card.capability for card in cards),
                    "STANDIN_BACKING": "none",
                },
            }
        )
    )
    program = folder / f"{vendor}-container-runtime"
    # Only the making of a container that names GPUs, and of a process in it, is ours: all else costs nothing.
    program.write_text(
        f"""#!/bin/sh
case " $* " in
*" create "*)
    for word in "$@"; do [ "$before" != --bundle ] || file=$word/config.json; before=$word; done
    ;;
*" exec "*)
    for word in "$@"; do [ "$before" != --process ] || file=$word; before=$word; done
    ;;
esac
if [ "$file" ] && grep -Eq '"{vendor.row.runtime_variable}=([^v"]|v[^o])' "$file"; then
    exec {sys.executable} -IS {RUNTIME} {about} {runc} "$@"
fi
exec {runc} "$@"
"""
    )
    program.chmod(0o755)
    return program
