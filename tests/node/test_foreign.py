# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Work that is not our jobs' on a device's cores, from made-up process tables and from the real one."""

import os
import time
from pathlib import Path

import pytest

from cotenant.node.foreign import ForeignWork
from tests.job.serving import process

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A process table of two cores that a test writes itself."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.now = proc, 100.0
        self.cores = {0: 0.0, 1: 0.0}
        self.processes: dict[int, tuple[int, float]] = {}
        """parent and seconds"""

    def clock(self) -> float:
        return self.now

    def write(self) -> None:
        lines = ["cpu 1 2 3 4 5 6 7 8 0 0"]
        for core, seconds in self.cores.items():
            lines.append(f"cpu{core} {int(seconds * TICKS)} 0 0 {int(self.now * TICKS)} 9 0 0 0 0 0")
        (self.proc / "stat").write_text("\n".join([*lines, "intr 5 6", "ctxt 7"]) + "\n")
        for pid, (parent, seconds) in self.processes.items():
            (self.proc / str(pid)).mkdir(exist_ok=True)
            fields = ["S", str(parent), *["0"] * 9, str(int(seconds * TICKS)), "0", *["0"] * 6, "7", "0", "0"]
            (self.proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_our_jobs_do_not_explain_is_foreign(machine: Machine) -> None:
    machine.processes = {10: (1, 0.0), 11: (10, 5.0), 12: (11, 0.0), 20: (1, 0.0)}
    foreign = ForeignWork({0: (0,), 1: (1,)}, proc=machine.proc, clock=machine.clock)
    machine.write()
    assert foreign.measure({10: (1,)}) == {}, "there is nothing to compare with yet"
    machine.now += 2.0
    machine.cores = {0: 1.0, 1: 2.0}
    machine.processes |= {11: (10, 6.0), 12: (11, 0.5), 20: (1, 1.5)}  # the last one belongs to no job
    machine.write()
    shares = foreign.measure({10: (1,)})
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[1] == pytest.approx(0.25, abs=0.05)


def test_a_job_on_several_devices_works_on_each_alike(machine: Machine) -> None:
    machine.processes = {10: (1, 0.0)}
    foreign = ForeignWork({0: (0,), 1: (1,)}, proc=machine.proc, clock=machine.clock)
    machine.write()
    foreign.measure({10: (0, 1)})
    machine.now += 2.0
    machine.cores = {0: 1.0, 1: 1.6}
    machine.processes = {10: (1, 2.0)}
    machine.write()
    shares = foreign.measure({10: (0, 1)})
    assert shares[0] == pytest.approx(0.0, abs=0.05)
    assert shares[1] == pytest.approx(0.3, abs=0.05)


def test_looks_too_soon_or_too_late_say_nothing(machine: Machine) -> None:
    foreign = ForeignWork({0: (0,)}, proc=machine.proc, clock=machine.clock)
    machine.write()
    foreign.measure({})
    machine.now += 0.1
    assert foreign.measure({}) == {}
    machine.now += 1.0
    assert foreign.measure({}).keys() == {0}
    machine.now += 60.0
    assert foreign.measure({}) == {}


def test_a_real_process_counts_only_while_it_is_nobody_s(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    burn = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    with process(burn) as busy:
        theirs, ours = ForeignWork({0: (core,)}), ForeignWork({0: (core,)})
        theirs.measure({})
        ours.measure({busy.pid: (core,)})
        time.sleep(1.2)
        assert theirs.measure({})[0] > ours.measure({busy.pid: (core,)})[0]
