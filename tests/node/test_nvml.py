# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs through NVML, on a stand-in library whose cards can be broken."""

from pathlib import Path

import pytest

from cotenant.core.model import Link
from cotenant.core.units import Seconds
from cotenant.errors import DeviceError
from cotenant.node.devices import ProcessUsage, Running
from cotenant.node.devices.health import Health
from cotenant.node.devices.links import Far, nvlink_pairs
from cotenant.node.devices.nvml import NvmlBackend, load_library
from tests.node.fake_nvml import GIB, Card, FakeNvml, NVMLError

LOST, NO_PERMISSION, NOT_SUPPORTED, NOT_FOUND, NO_FUNCTION = 15, 4, 3, 6, 13
XID, ECC = FakeNvml.nvmlEventTypeXidCriticalError, FakeNvml.nvmlEventTypeDoubleBitEccError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def two_cards() -> FakeNvml:
    return FakeNvml(Card("GPU-a", bus=1), Card("GPU-b", bus=2))


def healthy(backend: NvmlBackend) -> list[bool]:
    return [gpu.healthy for gpu in backend.machine().gpus]


# inventory


def test_cards_are_listed_with_type_memory_and_numa_node(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    nvml = FakeNvml(Card("GPU-a", bus=0x3B), Card("GPU-b", name="Tesla T4", memory=15 * GIB, bus=0x5E))
    machine = NvmlBackend(nvml, sysfs=tmp_path).machine()
    assert machine.name == "local"
    assert [(gpu.uuid, gpu.type, gpu.memory, gpu.numa, gpu.healthy) for gpu in machine.gpus] == [
        ("GPU-a", "NVIDIA A100-SXM4-40GB", 40 * 1024, 1, True),
        ("GPU-b", "Tesla T4", 15 * 1024, None, True),
    ]


def test_a_negative_numa_node_means_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("-1\n")
    assert NvmlBackend(FakeNvml(Card("GPU-a", bus=1)), sysfs=tmp_path).machine().gpus[0].numa is None


def test_the_first_note_counts_the_models() -> None:
    nvml = FakeNvml(Card("a", name="T4"), Card("b", name="V100"), Card("c", name="V100"))
    assert NvmlBackend(nvml).notes == ("NVIDIA GPUs: 1 x T4, 2 x V100",)


def test_a_card_in_mig_mode_takes_no_jobs_and_a_note_says_so() -> None:
    backend = NvmlBackend(FakeNvml(Card("a", name="A100"), Card("b", name="A100", mig=1)))
    assert healthy(backend) == [True, False]
    assert backend.notes[1].startswith("GPU 1: in MIG mode")
    assert backend.faults()["b"].startswith("in MIG mode")


@pytest.mark.parametrize(("error", "words"), [(12, "NVML Shared Library Not Found"), (9, "Driver Not Loaded")])
def test_no_driver_is_one_clear_line(error: int, words: str) -> None:
    nvml = FakeNvml()
    nvml.init_error = error
    with pytest.raises(DeviceError, match=rf"^no NVIDIA driver answers \({words}\)$"):
        NvmlBackend(nvml)


def test_a_driver_without_gpus_is_one_clear_line_and_is_left() -> None:
    nvml = FakeNvml()
    with pytest.raises(DeviceError, match="lists no GPU"):
        NvmlBackend(nvml)
    assert nvml.sessions == 0


def test_closing_leaves_nothing_open() -> None:
    nvml = two_cards()
    NvmlBackend(nvml).close()
    assert (nvml.sessions, nvml.event_sets) == (0, 0)


def test_the_real_library_has_every_name_that_is_used() -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    real = load_library()
    used = [name for name in dir(FakeNvml) if name.lower().startswith("nvml")]
    assert [name for name in used if not hasattr(real, name)] == []
    assert real.NVMLError(real.NVML_ERROR_GPU_IS_LOST).value == LOST
    constants = [name for name in used if isinstance(getattr(FakeNvml, name), int) and name != "NVML_NVLINK_MAX_LINKS"]
    assert {name: getattr(FakeNvml, name) for name in constants} == {name: getattr(real, name) for name in constants}


# links


def test_pcie_levels_become_link_scores() -> None:
    levels = {(0, 1): 10, (0, 2): 20, (0, 3): 30, (1, 2): 40, (1, 3): 50, (2, 3): 0}
    nvml = FakeNvml(*(Card(name) for name in "abcd"), ancestor=lambda a, b: levels[min(a, b), max(a, b)])
    links = NvmlBackend(nvml).machine().links
    assert links is not None
    assert {pair: links[pair[0]][pair[1]] for pair in levels} == {
        (0, 1): Link.PIX,
        (0, 2): Link.PXB,
        (0, 3): Link.PHB,
        (1, 2): Link.NODE,
        (1, 3): Link.SYS,
        (2, 3): Link.PSB,
    }
    assert all(links[a][b] == links[b][a] for a, b in levels)


def test_nvlinks_between_two_cards_add_up() -> None:
    nvml = FakeNvml(
        Card("a", bus=1, links=[(2, 0), (2, 0)]), Card("b", bus=2, links=[(1, 0), (1, 0)]), Card("c", bus=3)
    )
    links = NvmlBackend(nvml).machine().links
    assert links == ((0, 210, 10), (210, 0, 10), (10, 10, 0))


def test_links_to_a_switch_are_links_to_every_card_on_it() -> None:
    cards = [Card(f"GPU-{i}", bus=i, links=[(0x90 + link, 2) for link in range(12)]) for i in range(1, 9)]
    links = NvmlBackend(FakeNvml(*cards)).machine().links
    assert links is not None
    assert {links[a][b] for a in range(8) for b in range(8) if a != b} == {12 * Link.NVLINK + Link.SYS}


def test_a_switch_is_recognised_by_an_old_driver_that_cannot_name_it() -> None:
    cards = [Card(f"GPU-{i}", bus=i, links=[(0x90, 2)], broken={"nvlink_type": NO_FUNCTION}) for i in (1, 2)]
    assert NvmlBackend(FakeNvml(*cards)).machine().links == ((0, 110), (110, 0))


def test_a_switch_whose_address_is_hidden_is_still_a_switch() -> None:
    ends = {0: [Far(None, True)] * 2, 1: [Far(None, True)] * 2, 2: []}
    assert sorted(nvlink_pairs(ends, {})) == [(0, 1, 200), (1, 0, 200)]


def test_a_link_to_something_that_only_one_card_sees_joins_nothing() -> None:
    assert list(nvlink_pairs({0: [Far((0, 9, 0), False)], 1: []}, {(0, 1, 0): 0, (0, 2, 0): 1})) == []


def test_links_are_unknown_where_the_driver_does_not_tell() -> None:
    nvml = FakeNvml(Card("a", broken={"topology": NOT_SUPPORTED}), Card("b"))
    assert NvmlBackend(nvml).machine().links is None


def test_a_single_card_has_no_links() -> None:
    assert NvmlBackend(FakeNvml(Card("a"))).machine().links is None


# usage


def test_memory_and_utilisation_of_cards_and_processes() -> None:
    card = Card("GPU-a", used=3 * GIB, processes=[(10, GIB), (11, 2 * GIB), (12, None)])
    card.samples = [(10, 100, 20), (10, 200, 40), (11, 150, 99)]
    backend = NvmlBackend(FakeNvml(card))
    (usage,) = backend.usage()
    assert (usage.uuid, usage.used_mib, usage.utilisation) == ("GPU-a", 3 * 1024, 73)
    assert usage.processes == (ProcessUsage(10, 1024, 30), ProcessUsage(11, 2048, 99), ProcessUsage(12, None, 0))  # type: ignore[arg-type]
    card.samples.append((10, 300, 80))
    again = backend.usage()[0].processes
    assert again is not None
    assert [process.utilisation for process in again] == [80, 0, 0]


def test_processes_are_told_apart_by_the_job_whose_supervisor_they_descend_from(tmp_path: Path) -> None:
    for pid, parent in ((10, 9), (11, 10), (12, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} {' '.join(['0'] * 30)}\n")
    card = Card("GPU-a", processes=[(10, GIB), (11, GIB), (12, GIB)])
    backend = NvmlBackend(FakeNvml(card), proc=tmp_path)
    processes = backend.usage([Running(job="j-000001", gpus=(0,), supervisor=9)])[0].processes
    assert processes is not None
    assert [process.job for process in processes] == ["j-000001", "j-000001", None]


@pytest.mark.parametrize("error", [NO_PERMISSION, NOT_SUPPORTED, NO_FUNCTION])
def test_what_may_not_be_asked_is_unknown_and_no_fault(error: int) -> None:
    unknown = ("rates", "processes", "process_utilisation", "ecc", "remapped", "mig", "events", "nvlink", "pci")
    backend = NvmlBackend(FakeNvml(Card("a", used=GIB, broken=dict.fromkeys(unknown, error))))
    (usage,) = backend.usage()
    assert (usage.used_mib, usage.utilisation, usage.processes) == (1024, None, None)
    assert healthy(backend) == [True]


def test_processes_are_listed_when_only_their_utilisation_is_hidden() -> None:
    backend = NvmlBackend(FakeNvml(Card("a", processes=[(10, GIB)], broken={"process_utilisation": NO_PERMISSION})))
    assert backend.usage()[0].processes == (ProcessUsage(10, 1024, None),)  # type: ignore[arg-type]


def test_an_old_driver_is_asked_the_old_way() -> None:
    backend = NvmlBackend(FakeNvml(Card("a", processes=[(10, GIB)], broken={"processes_v3": NO_FUNCTION})))
    processes = backend.usage()[0].processes
    assert processes is not None
    assert processes[0].pid == 10


@pytest.mark.parametrize("error", [0, NOT_FOUND])
def test_a_process_without_a_sample_is_idle(error: int) -> None:
    backend = NvmlBackend(FakeNvml(Card("a", processes=[(10, GIB)], broken={"process_utilisation": error})))
    assert backend.usage()[0].processes == (ProcessUsage(10, 1024, 0),)  # type: ignore[arg-type]


def test_usage_of_a_lost_card_is_unknown_and_of_the_others_is_not() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    nvml.cards[0].broken["*"] = LOST
    lost, fine = backend.usage()
    assert (lost.uuid, lost.used_mib, lost.processes) == ("GPU-a", None, None)
    assert fine.used_mib == 0
    assert backend.faults() == {"GPU-a": "GPU is lost"}


# health


def test_a_lost_card_is_unhealthy_at_once_and_comes_back_after_a_quiet_while() -> None:
    nvml, clock = two_cards(), Clock()
    backend = NvmlBackend(nvml, clock=clock, recovery=Seconds(60.0))
    nvml.cards[0].broken["*"] = LOST
    assert healthy(backend) == [False, True]
    assert backend.machine().gpus[0].uuid == "GPU-a"
    nvml.cards[0].broken.clear()
    for clock.now, expected in ((10.0, False), (69.0, False), (70.0, True)):
        assert healthy(backend) == [expected, True]
    assert backend.faults() == {}


def test_a_card_that_is_lost_at_the_start_keeps_its_place_and_is_named_when_it_answers() -> None:
    nvml, clock = two_cards(), Clock()
    nvml.cards[0].broken["*"] = LOST
    backend = NvmlBackend(nvml, clock=clock)
    first, second = backend.machine().gpus
    assert (first.uuid, first.healthy, second.uuid, second.healthy) == ("GPU-unknown-0", False, "GPU-b", True)
    nvml.cards[0].broken.clear()
    backend.machine()
    clock.now = 100.0
    machine = backend.machine()
    assert (machine.gpus[0].uuid, machine.gpus[0].memory, machine.gpus[0].healthy) == ("GPU-a", 40 * 1024, True)
    assert machine.links == ((0, 10), (10, 0))


def test_indices_that_move_do_not_mix_up_cards() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    del nvml.cards[0]
    assert [(gpu.uuid, gpu.healthy) for gpu in backend.machine().gpus] == [("GPU-a", False), ("GPU-b", True)]


def test_a_reported_xid_takes_only_its_card_out() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    nvml.events.append((nvml.cards[1], XID, 79))
    assert healthy(backend) == [True, False]
    assert backend.faults() == {"GPU-b": "XID 79 was reported"}


def test_faults_of_programs_do_not_take_a_card_out() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    nvml.events += [(nvml.cards[0], XID, xid) for xid in (13, 31, 43, 45, 68, 109)]
    assert healthy(backend) == [True, True]


def test_an_event_of_a_card_that_cannot_be_named_harms_no_other() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    nvml.cards[0].broken["*"] = LOST
    nvml.events.append((nvml.cards[0], XID, 79))
    assert healthy(backend) == [False, True]


def test_a_storm_of_events_ends() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    nvml.events += [(nvml.cards[0], ECC, 0)] * 1000
    assert healthy(backend) == [False, True]
    assert len(nvml.events) == 900


def test_new_uncorrectable_memory_errors_take_a_card_out_and_old_ones_do_not() -> None:
    nvml = FakeNvml(Card("a", ecc=5))
    backend = NvmlBackend(nvml)
    assert healthy(backend) == [True]
    nvml.cards[0].ecc = 7
    assert healthy(backend) == [False]
    assert backend.faults() == {"a": "2 new uncorrectable memory errors"}


def test_a_card_with_rows_to_remap_stays_out_until_that_is_done() -> None:
    nvml, clock = FakeNvml(Card("a", remapped=(0, 1, 1, 0))), Clock()
    backend = NvmlBackend(nvml, clock=clock)
    for clock.now in (0.0, 100.0, 1000.0):
        assert healthy(backend) == [False]
    assert "needs a reset" in backend.faults()["a"]


def test_when_no_card_answers_a_new_session_is_opened_as_after_a_driver_reload() -> None:
    nvml, clock = two_cards(), Clock()
    backend = NvmlBackend(nvml, clock=clock)
    nvml.sessions, nvml.init_error = 0, 9
    assert healthy(backend) == [False, False]
    nvml.init_error = None
    backend.machine()
    assert nvml.sessions == 1
    backend.machine()
    clock.now = 60.0
    assert healthy(backend) == [True, True]
    assert nvml.sessions == 1
    backend.close()
    assert nvml.sessions == 0


def reason(health: Health) -> str | None:
    return health.reason


def test_health_waits_longer_for_a_card_that_keeps_failing() -> None:
    health = Health(Seconds(10.0))
    health.fault("once", Seconds(0.0))
    health.answered(Seconds(0.0))
    health.answered(Seconds(10.0))
    assert reason(health) is None
    health.fault("again", Seconds(12.0))
    health.answered(Seconds(12.0))
    health.answered(Seconds(23.0))
    assert reason(health) == "again"
    health.answered(Seconds(32.0))
    assert reason(health) is None
    health.fault("much later", Seconds(500.0))
    health.answered(Seconds(500.0))
    health.answered(Seconds(510.0))
    assert reason(health) is None


def test_a_fault_during_recovery_starts_the_wait_again() -> None:
    health = Health(Seconds(10.0))
    health.fault("once", Seconds(0.0))
    health.answered(Seconds(1.0))
    health.fault("twice", Seconds(9.0))
    health.answered(Seconds(10.0))
    health.answered(Seconds(19.0))
    assert reason(health) == "twice"
    health.answered(Seconds(20.0))
    assert reason(health) is None


def test_the_stand_in_raises_as_the_binding_does() -> None:
    with pytest.raises(NVMLError, match="GPU is lost"):
        raise NVMLError(LOST)
