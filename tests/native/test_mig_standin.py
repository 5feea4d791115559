# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""MIG instances of the stand-in driver: each has memory and compute of its own."""

from pathlib import Path

import pytest

from tests.native.standins import MILLISECOND, client, finish, line_of, started

SETTINGS: dict[str, str | int] = {"names": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "mig": "1g.5gb/1g.5gb"}
FIRST, SECOND = (f"MIG-00000000-0000-0000-{serial:04x}-000000000001" for serial in (1, 2))
FILL = "begin()\ntell(got=call(cu.cuMemAlloc_v2, ctypes.byref(ctypes.c_uint64()), %d * MIB))\n"
HOLD = FILL % 5000 + "sys.stdin.readline()"


def test_a_mig_instance_has_memory_of_its_own(tmp_path: Path) -> None:
    with started(tmp_path, HOLD, CUDA_VISIBLE_DEVICES=FIRST, **SETTINGS) as process:
        assert line_of(process) == "got 0"
        assert client(tmp_path, FILL % 200, CUDA_VISIBLE_DEVICES=FIRST, **SETTINGS) == {"got": 2}
        assert client(tmp_path, FILL % 5000, CUDA_VISIBLE_DEVICES=SECOND, **SETTINGS) == {"got": 0}
        finish(process, "\n")


@pytest.mark.slow
def test_a_mig_instance_has_compute_of_its_own(tmp_path: Path) -> None:
    """A busy neighbour on another instance delays nothing; on the same one it does."""
    burn = f"begin()\nf = kernel({400 * MILLISECOND})\nfor _ in range(8): launch(f)\nprint('on')\nsys.stdin.readline()"
    work = f"begin()\nf, began = kernel({20 * MILLISECOND}), cu.standinNow()\nfor _ in range(5): launch(f)\n"
    work += "ok(cu.cuCtxSynchronize())\ntell(took=cu.standinNow() - began)"
    with started(tmp_path, burn.replace("'on'", "'on', flush=True"), CUDA_VISIBLE_DEVICES=FIRST, **SETTINGS) as process:
        assert line_of(process) == "on"
        apart = client(tmp_path, work, CUDA_VISIBLE_DEVICES=SECOND, **SETTINGS)["took"]
        beside = client(tmp_path, work, CUDA_VISIBLE_DEVICES=FIRST, **SETTINGS)["took"]
    assert apart < beside
    assert apart >= 100 * MILLISECOND


def test_a_process_sees_one_mig_instance(tmp_path: Path) -> None:
    count = "ok(cu.cuInit(0))\ntell(count=out(cu.cuDeviceGetCount, kind=ctypes.c_int))"
    assert client(tmp_path, count, CUDA_VISIBLE_DEVICES=f"{FIRST},{SECOND}", **SETTINGS) == {"count": 1}
