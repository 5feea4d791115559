# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The memory quota in every order in which two or three processes can access the usage region.

Processes that race seldom meet the one order that breaks a quota. native/programs/base_interleave.c runs the library's
own C in all of them, so a broken protocol fails every time; the second test breaks it in several ways to show that.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import kit

LIMIT = 1000
SCENARIOS = {"two": 600, "three": 800, "unlike": 1000, "again": 1000}
"""by name: the most bytes that may be granted at once, which some order reaches"""

SUM = "used_by_others(slot, device, where)"
FENCE = "    atomic_thread_fence(memory_order_seq_cst);\n    uint64_t limit = limit_in_force(device, where);\n"
ANNOUNCE = "    return decide(device, where, bytes, raise_use(device, where, bytes));\n"
LOOP = "for (uint32_t i = 0; i < high; i++)"
LOWER = "ct_show_use(ct_my_slot(), device, where, mine > bytes"
ORDER = "    if (index > 0) ct_order_processes();\n"
ALONE = "__builtin_expect(region->high <= 1, 1) || "
BROKEN = {
    "summed before it is announced": [
        (
            "region.c",
            ANNOUNCE,
            f"    uint64_t others = {SUM.replace('slot,', 'ct_my_slot(),')}, limit = limit_in_force(device, where);\n"
            "    uint64_t mine = raise_use(device, where, bytes);\n"
            "    if (mine <= limit && others <= limit - mine) return true;\n"
            "    lower_use(device, where, bytes);\n"
            "    return false;\n",
        )
    ],
    "summed before the others can see it": [("region.c", FENCE, FENCE[FENCE.index("\n") + 1 :])],
    "not all slots are summed": [("region.c", LOOP, LOOP.replace("i < high", "i + 1 < high"))],
    "own bytes are forgotten": [("region.c", "<= limit - mine)", "<= limit)")],
    "released bytes are taken off another process": [
        ("region.c", LOWER, LOWER.replace("ct_my_slot()", "&ct_region->slot[ct_my_slot() == ct_region->slot]"))
    ],
    "a process that joins does not order the others": [("slots.c", ORDER, "")],
    "a process that is not alone does not sum": [("account.h", ALONE, "region || ")],
}
"""what is replaced in a file of native/lib, by what"""


def build(native: Path, out: Path) -> Path:
    script = str(native / "build.py")
    command = [sys.executable, script, "program", "base_interleave", "--observed", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def explore(program: Path, scenario: str) -> dict[str, int]:
    done = subprocess.run([program, scenario, str(LIMIT)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return kit.values(done.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(kit.NATIVE, tmp_path_factory.mktemp("model"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_order_of_accesses_exceeds_the_quota(scenario: str, model: Path) -> None:
    found = explore(model, scenario)
    assert found["most"] == SCENARIOS[scenario]
    assert found["states"] > 500  # it did look
    assert found["weak"] == 0  # each access to an account is sequentially consistent, as the model takes it to be


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_protocol_is_found(fault: str, tmp_path: Path) -> None:
    shutil.copytree(kit.NATIVE, tmp_path / "native")
    for name, old, new in BROKEN[fault]:
        source = tmp_path / "native" / "lib" / name
        text = source.read_text()
        assert text.count(old) == 1, f"native/lib/{name} has changed: this test expects {old!r} in it once"
        source.write_text(text.replace(old, new))
    program = build(tmp_path / "native", tmp_path)
    assert any(explore(program, scenario)["most"] > LIMIT for scenario in ("two", "again"))


def test_a_weaker_order_of_accesses_is_found(tmp_path: Path) -> None:
    shutil.copytree(kit.NATIVE, tmp_path / "native")
    source = tmp_path / "native" / "lib" / "region.c"
    old, new = (
        "account(slot, where)[device];",
        "atomic_load_explicit(&account(slot, where)[device], memory_order_relaxed);",
    )
    assert source.read_text().count(old) == 1
    source.write_text(source.read_text().replace(old, new))
    assert explore(build(tmp_path / "native", tmp_path), "two")["weak"] > 0
