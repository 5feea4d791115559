# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs through NVML, on a stand-in library whose cards can be broken."""

from pathlib import Path
from typing import Any

import pytest

from cotenant.core.model import Link
from cotenant.core.units import Seconds
from cotenant.errors import DeviceError
from cotenant.node.devices.backend import ProcessUsage, Running
from cotenant.node.devices.counters import Counted, Counters
from cotenant.node.devices.health import Health
from cotenant.node.devices.links import Far, nvlink_pairs
from cotenant.node.devices.nvml import NvmlBackend, load_library
from tests.node.fake_nvml import GIB, FakeNvml, GpuModel, NVMLError

LOST, NO_PERMISSION, NOT_SUPPORTED, NOT_FOUND, NO_FUNCTION = 15, 4, 3, 6, 13
SM, DRAM, SENT, RECEIVED = 2, 10, 20, 21
"""numbers of GPM's metrics"""
XID, ECC = FakeNvml.nvmlEventTypeXidCriticalError, FakeNvml.nvmlEventTypeDoubleBitEccError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


ON_THE_FIRST = Running(job="j-000001", gpus=(0,), supervisor=1)


def two_cards() -> FakeNvml:
    return FakeNvml(GpuModel("GPU-a", bus=1), GpuModel("GPU-b", bus=2))


def healthy(backend: NvmlBackend) -> list[bool]:
    return [gpu.healthy for gpu in backend.machine().gpus]


# inventory


def test_cards_are_listed_with_type_memory_and_numa_node(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    nvml = FakeNvml(GpuModel("GPU-a", bus=0x3B), GpuModel("GPU-b", name="Tesla T4", memory=15 * GIB, bus=0x5E))
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
    assert NvmlBackend(FakeNvml(GpuModel("GPU-a", bus=1)), sysfs=tmp_path).machine().gpus[0].numa is None


@pytest.mark.parametrize(
    ("affinity", "node"),
    [(None, None), (0, None), (0b1, 0), (0b100, 2), (0b11, None), (1 << 70, 70), (1 << 70 | 1, None)],
)
def test_the_driver_tells_the_numa_node_that_the_kernel_does_not(
    tmp_path: Path, affinity: int | None, node: int | None
) -> None:
    nvml = FakeNvml(GpuModel("GPU-a", bus=1, affinity=affinity))
    assert NvmlBackend(nvml, sysfs=tmp_path).machine().gpus[0].numa == node


def test_a_gpu_that_is_lost_when_its_numa_node_is_read_is_unhealthy_and_the_others_are_not(tmp_path: Path) -> None:
    nvml = FakeNvml(GpuModel("GPU-a", broken={"affinity": 15}), GpuModel("GPU-b", affinity=1))
    backend = NvmlBackend(nvml, sysfs=tmp_path)
    assert healthy(backend) == [False, True]
    assert list(backend.faults().values()) == ["GPU is lost"]


def test_the_first_note_counts_the_models() -> None:
    nvml = FakeNvml(GpuModel("a", name="T4"), GpuModel("b", name="V100"), GpuModel("c", name="V100"))
    assert NvmlBackend(nvml).notes == ("NVIDIA GPUs: 1 x T4, 2 x V100",)


def test_a_card_in_mig_mode_takes_no_jobs_and_a_note_says_so() -> None:
    backend = NvmlBackend(FakeNvml(GpuModel("a", name="A100"), GpuModel("b", name="A100", mig=1)))
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
    nvml = FakeNvml(*(GpuModel(name) for name in "abcd"), ancestor=lambda a, b: levels[min(a, b), max(a, b)])
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
        GpuModel("a", bus=1, links=[(2, 0), (2, 0)]), GpuModel("b", bus=2, links=[(1, 0), (1, 0)]), GpuModel("c", bus=3)
    )
    links = NvmlBackend(nvml).machine().links
    assert links == ((0, 210, 10), (210, 0, 10), (10, 10, 0))


@pytest.mark.defect("go-gpuallocator: GPUs behind an NVSwitch seem to be linked by PCIe")
def test_links_to_a_switch_are_links_to_every_card_on_it() -> None:
    cards = [GpuModel(f"GPU-{i}", bus=i, links=[(0x90 + link, 2) for link in range(12)]) for i in range(1, 9)]
    links = NvmlBackend(FakeNvml(*cards)).machine().links
    assert links is not None
    assert {links[a][b] for a in range(8) for b in range(8) if a != b} == {12 * Link.NVLINK + Link.SYS}


def test_a_switch_is_recognised_by_an_old_driver_that_cannot_name_it() -> None:
    cards = [GpuModel(f"GPU-{i}", bus=i, links=[(0x90, 2)], broken={"nvlink_type": NO_FUNCTION}) for i in (1, 2)]
    assert NvmlBackend(FakeNvml(*cards)).machine().links == ((0, 110), (110, 0))


def test_a_switch_whose_address_is_hidden_is_still_a_switch() -> None:
    ends = {0: [Far(None, True)] * 2, 1: [Far(None, True)] * 2, 2: []}
    assert sorted(nvlink_pairs(ends, {})) == [(0, 1, 200), (1, 0, 200)]


def test_a_link_to_something_that_only_one_card_sees_joins_nothing() -> None:
    assert list(nvlink_pairs({0: [Far((0, 9, 0), False)], 1: []}, {(0, 1, 0): 0, (0, 2, 0): 1})) == []


def test_links_are_unknown_where_the_driver_does_not_tell() -> None:
    nvml = FakeNvml(GpuModel("a", broken={"topology": NOT_SUPPORTED}), GpuModel("b"))
    assert NvmlBackend(nvml).machine().links is None


def test_a_single_card_has_no_links() -> None:
    assert NvmlBackend(FakeNvml(GpuModel("a"))).machine().links is None


# usage


def test_memory_and_utilisation_of_cards_and_processes() -> None:
    card = GpuModel("GPU-a", used=3 * GIB, processes=[(10, GIB), (11, 2 * GIB), (12, None)])
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
    card = GpuModel("GPU-a", processes=[(10, GIB), (11, GIB), (12, GIB)])
    backend = NvmlBackend(FakeNvml(card), proc=tmp_path)
    processes = backend.usage([Running(job="j-000001", gpus=(0,), supervisor=9)])[0].processes
    assert processes is not None
    assert [process.job for process in processes] == ["j-000001", "j-000001", None]


@pytest.mark.parametrize("error", [NO_PERMISSION, NOT_SUPPORTED, NO_FUNCTION])
def test_what_may_not_be_asked_is_unknown_and_no_fault(error: int) -> None:
    unknown = ("rates", "processes", "process_utilisation", "ecc", "remapped", "mig", "events", "nvlink", "pci")
    counters = ("gpm_support", "pcie")
    backend = NvmlBackend(FakeNvml(GpuModel("a", used=GIB, broken=dict.fromkeys(unknown + counters, error))))
    (usage,) = backend.usage([ON_THE_FIRST])
    assert (usage.used_mib, usage.utilisation, usage.processes) == (1024, None, None)
    assert (usage.bandwidth, usage.pcie_mib_s) == (None, None)
    assert healthy(backend) == [True]


def test_processes_are_listed_when_only_their_utilisation_is_hidden() -> None:
    backend = NvmlBackend(FakeNvml(GpuModel("a", processes=[(10, GIB)], broken={"process_utilisation": NO_PERMISSION})))
    assert backend.usage()[0].processes == (ProcessUsage(10, 1024, None),)  # type: ignore[arg-type]


def test_an_old_driver_is_asked_the_old_way() -> None:
    backend = NvmlBackend(FakeNvml(GpuModel("a", processes=[(10, GIB)], broken={"processes_v3": NO_FUNCTION})))
    processes = backend.usage()[0].processes
    assert processes is not None
    assert processes[0].pid == 10


@pytest.mark.parametrize("error", [0, NOT_FOUND])
def test_a_process_without_a_sample_is_idle(error: int) -> None:
    backend = NvmlBackend(FakeNvml(GpuModel("a", processes=[(10, GIB)], broken={"process_utilisation": error})))
    assert backend.usage()[0].processes == (ProcessUsage(10, 1024, 0),)  # type: ignore[arg-type]


def test_usage_of_a_lost_card_is_unknown_and_of_the_others_is_not() -> None:
    nvml = two_cards()
    backend = NvmlBackend(nvml)
    nvml.cards[0].broken["*"] = LOST
    lost, fine = backend.usage()
    assert (lost.uuid, lost.used_mib, lost.processes) == ("GPU-a", None, None)
    assert fine.used_mib == 0
    assert backend.faults() == {"GPU-a": "GPU is lost"}


# counters


def hopper() -> GpuModel:
    return GpuModel("GPU-a", pcie=(1024, 1024), gpm={SM: 31.4, DRAM: 55.5, SENT: 1500.0, RECEIVED: 250.0})


def seen(backend: NvmlBackend, *jobs: Running) -> list[tuple[int | None, int | None, float | None]]:
    return [(one.utilisation, one.bandwidth, one.pcie_mib_s) for one in backend.usage(jobs)]


def test_pcie_traffic_is_both_directions_together_and_asked_only_of_a_card_with_one_job() -> None:
    nvml = FakeNvml(*(GpuModel(name, pcie=(3072, 1024)) for name in "abcd"))
    sitting = [(0,), (1,), (1,), (2, 3)]
    jobs = [Running(job=f"j-{i:06}", gpus=gpus, supervisor=i) for i, gpus in enumerate(sitting)]
    assert [pcie for *_, pcie in seen(NvmlBackend(nvml), *jobs)] == [4.0, None, None, None]
    assert [card.asked.count("pcie") for card in nvml.cards] == [2, 0, 0, 0], "each question takes the driver 20 ms"


def test_temperature_and_power_are_in_base_units_and_unknown_if_the_card_has_no_sensor() -> None:
    bare = GpuModel("b", broken={"temperature": NOT_SUPPORTED, "power": NOT_SUPPORTED})
    backend = NvmlBackend(FakeNvml(GpuModel("a"), bare))
    for _ in range(2):
        found = [(one.temperature_celsius, one.power_watts) for one in backend.usage()]
        assert found == [(61.0, 245.5), (None, None)]
    assert bare.asked.count("power") == 1
    assert not backend.faults()


def test_a_card_that_does_not_tell_its_pcie_traffic_is_asked_once() -> None:
    card = GpuModel("a", broken={"pcie": NOT_SUPPORTED})
    backend = NvmlBackend(FakeNvml(card))
    assert [seen(backend, ON_THE_FIRST) for _ in range(3)] == [[(73, 21, None)]] * 3
    assert card.asked.count("pcie") == 1


def test_gpm_counters_are_preferred_from_the_second_look_on() -> None:
    nvml = FakeNvml(hopper(), GpuModel("GPU-b"))
    backend = NvmlBackend(nvml)
    assert seen(backend) == [(73, 21, None), (73, 21, None)]
    for _ in range(3):
        assert seen(backend) == [(31, 56, 1750.0), (73, 21, None)]
        assert len(nvml.gpm_samples) == 1
    assert [card.asked.count("gpm_support") for card in nvml.cards] == [1, 1]
    assert "pcie" not in nvml.cards[0].asked


def test_a_metric_that_gpm_does_not_offer_comes_from_elsewhere() -> None:
    card = hopper()
    card.gpm = {SM: 31.4, SENT: 1500.0}
    backend = NvmlBackend(FakeNvml(card))
    seen(backend)
    assert seen(backend, ON_THE_FIRST) == [(31, 21, 2.0)]


@pytest.mark.parametrize("absurd", [float("nan"), float("inf"), -1.0, 2.0**64])
def test_a_counter_that_cannot_be_is_unknown(absurd: float) -> None:
    card = hopper()
    card.gpm = {SM: absurd, DRAM: absurd, SENT: 1.0, RECEIVED: absurd}
    backend = NvmlBackend(FakeNvml(card))
    seen(backend)
    assert seen(backend) == [(73, 21, None)]


@pytest.mark.parametrize("question", ["gpm_support", "gpm_sample", "gpm_metrics"])
@pytest.mark.parametrize("error", [LOST, NO_PERMISSION, 999])
def test_an_error_of_the_counters_turns_them_off_frees_them_and_is_no_fault(question: str, error: int) -> None:
    nvml = FakeNvml(hopper())
    backend = NvmlBackend(nvml)
    if question != "gpm_support":  # which is asked only once
        seen(backend)
        seen(backend)
    nvml.cards[0].broken[question] = error
    assert seen(backend) == [(73, 21, None)]
    assert nvml.gpm_samples == []
    nvml.cards[0].broken.clear()
    assert [seen(backend) for _ in range(2)] == [[(73, 21, None)]] * 2, "off for good"
    assert seen(backend, ON_THE_FIRST) == [(73, 21, 2.0)], "and the other way of asking is not"
    assert (healthy(backend), backend.faults()) == ([True], {})


def test_samples_are_freed_when_the_backend_is_closed() -> None:
    nvml = FakeNvml(hopper(), hopper())
    nvml.cards[1].uuid = "GPU-b"
    backend = NvmlBackend(nvml)
    seen(backend)
    assert len(nvml.gpm_samples) == 2
    backend.close()
    assert (nvml.gpm_samples, nvml.sessions) == ([], 0)


def test_a_card_that_was_lost_is_counted_anew_when_it_is_back() -> None:
    nvml = FakeNvml(hopper(), GpuModel("GPU-b"))
    backend = NvmlBackend(nvml)
    seen(backend)
    nvml.cards[0].broken["*"] = LOST
    assert seen(backend)[0] == (None, None, None)
    assert nvml.gpm_samples == []
    nvml.cards[0].broken.clear()
    assert [seen(backend)[0] for _ in range(2)] == [(73, 21, None), (31, 56, 1750.0)]


def test_the_structures_of_the_real_binding_are_filled_as_it_expects() -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    real = load_library()

    class Bound(FakeNvml):
        c_nvmlGpmMetricsGet_t = real.c_nvmlGpmMetricsGet_t  # noqa: N815

        def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
            return real.c_nvmlGpmSample_t(real.struct_c_nvmlGpmSample_t())

        def nvmlGpmSampleGet(self, card: GpuModel, sample: Any) -> None:  # noqa: N802
            self.gpm_samples.append(sample)

        def nvmlGpmMetricsGet(self, question: Any) -> Any:  # noqa: N802
            assert (question.version, question.numMetrics) == (real.NVML_GPM_METRICS_GET_VERSION, 4)
            for given, taken in zip((question.sample1, question.sample2), self.gpm_samples, strict=True):
                assert bytes(given) == bytes(taken), "the same address"
            for metric, number in zip(question.metrics[:4], (SM, DRAM, SENT, RECEIVED), strict=True):
                assert metric.metricId == number
                metric.value = float(number)
            return question

    nvml = Bound()
    nvml.nvmlInit()
    counters, card = Counters(nvml), hopper()
    polled = [counters.poll(card, pcie=False)._replace(temperature_celsius=None, power_watts=None) for _ in range(2)]
    assert polled == [Counted(), Counted(SM, DRAM, SENT + RECEIVED)]


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


@pytest.mark.defect("HAMi: one bad GPU ends the whole plugin")
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
    nvml = FakeNvml(GpuModel("a", ecc=5))
    backend = NvmlBackend(nvml)
    assert healthy(backend) == [True]
    nvml.cards[0].ecc = 7
    assert healthy(backend) == [False]
    assert backend.faults() == {"a": "2 new uncorrectable memory errors"}


def test_a_card_with_rows_to_remap_stays_out_until_that_is_done() -> None:
    nvml, clock = FakeNvml(GpuModel("a", remapped=(0, 1, 1, 0))), Clock()
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
