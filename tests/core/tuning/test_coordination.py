# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator as its agent sees it: events in, actions out, over a device that is an equation."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cotenant.core.tuning.candidates import MemoryModel
from cotenant.core.tuning.coordination import (
    Coordinator,
    Joined,
    Pause,
    Resume,
    SetBatch,
    StepReport,
    Trial,
    Tuning,
)
from cotenant.core.tuning.goodput import GradientNoise, LearningRate
from cotenant.core.units import MiB, Seconds
from tests.core.tuning.fifo_device import Work, random_work
from tests.core.tuning.virtual_device import TICK, Device, speeds_of

QUICK = Work(fixed=0.004, per_sample=0.0001)
"""gains much by larger batches"""
HEAVY = Work(fixed=0.002, per_sample=0.001)
"""gains little, and its large batches hold the engine for long"""
WAITING = Work(fixed=0.002, per_sample=0.0001, wait=0.0004)
"""leaves the engine free for most of the time"""


def joined(
    job: str,
    *,
    bounds: tuple[int, int] | None = (8, 256),
    floor: float | None = None,
    memory: MemoryModel | None = None,
) -> Joined:
    """A job whose default batch is 32."""
    sqrt = LearningRate.SQRT
    return Joined(at=Seconds(0), job=job, batch=32, bounds=bounds, floor=floor, memory=memory, learning_rate=sqrt)


def gain(device: Device, sizes: dict[str, int], default: int = 32) -> float:
    """True harmonic mean of goodputs, relative to those at the default sizes."""
    base = device.goodputs(**dict.fromkeys(sizes, default))
    tuned = device.goodputs(**sizes)
    return statistics.harmonic_mean([tuned[job] / base[job] for job in sizes])


# one job, two jobs, three


def test_a_job_alone_is_tuned_once_and_then_left_in_peace() -> None:
    device = Device()
    assert device.join(QUICK, joined("a")) == []
    device.settle()
    assert device.batches["a"] > 32
    assert gain(device, device.batches) > 1.2
    before = len(device.actions)
    for _ in range(400):
        device.second()
    assert len(device.actions) == before


def test_two_jobs_are_tuned_together_when_the_second_begins_to_train() -> None:
    device = Device(error=0.02)
    device.join(QUICK, joined("a"))
    device.settle()
    device.join(HEAVY, joined("b"))
    assert device.coordinator.idle, "whoever does not train yet is not waited for"
    seconds = device.settle()
    assert seconds < 120
    assert gain(device, device.batches) > 1.1
    assert device.choice("a").sizes == device.choice("b").sizes == device.batches
    assert {trial.kind for trial in device.coordinator.history("b")} == {"default", "probe", "choice"}


def test_three_jobs_one_of_which_cannot_be_tuned() -> None:
    device = Device(Coordinator("gpu 0", Tuning(points=64)))
    device.join(QUICK, joined("a"))
    device.join(HEAVY, joined("b", bounds=None))
    device.join(WAITING, joined("c"))
    device.settle()
    assert gain(device, device.batches) >= 1
    assert not any(action.job == "b" for action in device.actions)
    assert "b" in device.choice("a").sizes, "its slowdown counts nevertheless"


def test_jobs_that_cannot_be_tuned_are_left_alone() -> None:
    device = Device()
    device.join(QUICK, joined("a", bounds=None))
    device.join(QUICK, Joined(at=Seconds(0), job="b"))
    for _ in range(60):
        device.second()
        assert device.coordinator.idle
    assert device.actions == []


def test_learning_rate_follows_the_size_and_returns_with_it() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.settle()
    for action in device.actions:
        assert isinstance(action, SetBatch)
        assert action.lr_scale == pytest.approx(math.sqrt(action.size / 32))


def test_reported_gradient_noise_decides_how_far_a_batch_may_grow() -> None:
    chosen = []
    for noise in (1.0, 30_000.0):
        device = Device(gradient=GradientNoise(sqr=1.0, var=noise))
        device.join(QUICK, joined("a"))
        device.settle()
        chosen.append(device.batches["a"])
    assert chosen[0] <= 32 < chosen[1] == 256


def test_sizes_that_do_not_fit_into_memory_are_never_asked_for() -> None:
    device = Device()
    device.join(QUICK, joined("a", memory=MemoryModel(baseline=MiB(500), per_sample=4.0, limit=MiB(1000))))
    device.settle()
    assert max(action.size for action in device.actions if isinstance(action, SetBatch)) == 64


def test_history_has_predicted_and_measured_goodput_in_samples_per_second() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.settle()
    default, choice = device.trials("a", "default")[0], device.choice("a")
    assert default.measured is not None
    assert choice.measured is not None
    assert choice.predicted is not None
    assert default.measured["a"] == pytest.approx(device.speeds(a=32)["a"], rel=0.01)
    assert choice.measured["a"] == pytest.approx(device.goodputs()["a"], rel=0.01)
    assert choice.predicted["a"] == pytest.approx(device.goodputs()["a"], rel=0.1)
    assert choice.note == "better than the default"


# safety


def test_the_default_returns_when_nothing_is_better() -> None:
    device = Device()
    device.join(Work(fixed=0.0, per_sample=0.001), joined("a"))
    device.settle()
    assert device.batches["a"] == 32
    assert device.choice("a").note == "nothing better than the default"


def test_at_most_eight_points_are_measured_and_the_winner_twice() -> None:
    device = Device(error=0.02)
    device.join(QUICK, joined("a"))
    device.join(WAITING, joined("b"))
    device.settle()
    history = device.coordinator.history("a")
    assert [trial.kind for trial in history] == ["default", *["probe"] * 7, "choice"]
    assert [trial.sizes for trial in history[1:-1]].count(history[-1].sizes) == 2


def test_drift_of_the_machine_is_not_taken_for_a_gain() -> None:
    device = Device()
    device.join(Work(fixed=0.0001, per_sample=0.001), joined("a"))
    for _ in range(150):
        device.second()
        device.speed *= 1.01
    assert device.choice("a").sizes == {"a": 32}


def test_a_jump_of_the_machine_within_a_trial_is_measured_again() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    while device.now < 30:
        device.speed = 2.0 if device.now >= 2.5 else 1.0
        device.tick()
    first, second = device.trials("a", "probe")[:2]
    assert (first.rejected, second.rejected) == (True, False)
    assert first.note == "the machine's speed changed by +100% meanwhile"
    assert first.sizes == second.sizes
    assert second.measured is not None
    assert second.measured["a"] == pytest.approx(2 * device.goodputs(**second.sizes)["a"], rel=0.01)


def drift_until_chosen(device: Device) -> None:
    """The speed of the machine differs by half from one window at the default to the next."""
    size = 32
    while not device.trials("a", "choice"):
        device.tick()
        if device.batches["a"] == 32 != size:
            device.speed = 2.5 - device.speed
        size = device.batches["a"]


@pytest.mark.parametrize(("work", "better"), [(Work(fixed=0.02, per_sample=0.0001), True), (HEAVY, False)])
def test_a_gain_beyond_the_drift_of_the_machine_counts(work: Work, better: bool) -> None:
    device = Device()
    device.join(work, joined("a"))
    drift_until_chosen(device)
    assert (device.batches["a"] > 32) is better
    assert not better or gain(device, device.batches) > 1.5


def test_with_a_floor_no_trial_counts_while_the_machine_drifts() -> None:
    device = Device()
    device.join(Work(fixed=0.02, per_sample=0.0001), joined("a", floor=0.5))
    drift_until_chosen(device)
    assert all(trial.rejected for trial in device.trials("a", "probe"))
    assert device.batches == {"a": 32}


@pytest.mark.parametrize(
    ("works", "thorough", "quick"),
    [
        ((QUICK, HEAVY), Tuning(hope=0.0, promise=0.0), Tuning(promise=0.0)),
        ((Work(fixed=0.02, per_sample=0.0001), WAITING), Tuning(promise=0.0), Tuning()),
    ],
    ids=["nothing is better", "the best gains much"],
)
def test_an_episode_ends_when_other_sizes_promise_too_little(
    works: tuple[Work, Work], thorough: Tuning, quick: Tuning
) -> None:
    probes, gains = [], []
    for tuning in (thorough, quick):
        device = Device(Coordinator("gpu 0", tuning))
        for job, work in zip("ab", works, strict=True):
            device.join(work, joined(job))
        device.settle()
        probes.append(len(device.trials("a", "probe")))
        gains.append(gain(device, device.batches))
    assert probes[0] > probes[1]
    assert min(gains) > 0.97 * max(gains) > 1.1


def test_a_floor_keeps_a_job_from_paying_for_its_neighbour() -> None:
    def tuned(floor: float | None) -> Device:
        device = Device()
        device.join(HEAVY, joined("payer", bounds=None, floor=floor))
        device.join(QUICK, joined("winner"))
        device.settle()
        return device

    free, protected = tuned(None), tuned(0.9)
    assert not any(isinstance(action, Pause) for action in free.actions), "nobody pauses where no floor is set"
    base = protected.speeds(winner=32)["payer"]
    assert free.speeds()["payer"] < 0.97 * base
    assert protected.speeds()["payer"] >= 0.98 * base, "sharing took more than a tenth already: tuning takes nothing"


def test_speed_alone_is_learnt_by_pausing_the_others_and_only_once() -> None:
    device = Device()
    device.join(WAITING, joined("a", floor=0.5))
    device.join(QUICK, joined("b"))
    device.settle()
    assert device.actions[:2] == [Pause("b"), Resume("b")]
    assert [trial.sizes for trial in device.trials("a", "alone")] == [{"a": 32}]
    solo = speeds_of((WAITING,), (32,))[0]
    assert device.coordinator.solo("a") == pytest.approx(solo, rel=0.01)
    assert device.speeds()["a"] >= 0.5 * solo * 0.98
    device.leave("b")
    device.settle()
    device.join(QUICK, joined("c"))
    device.settle()
    assert [action for action in device.actions if isinstance(action, Pause)] == [Pause("b")]


# disturbance, silence, departure


def test_a_disturbed_window_is_measured_again() -> None:
    quiet, disturbed = Device(), Device()
    for device in (quiet, disturbed):
        device.join(QUICK, joined("a"))
    while disturbed.now < 10:
        disturbed.tick()
        if disturbed.now in (2.5, 5.0):
            disturbed.disturb()
    assert disturbed.settle() + 10 > quiet.settle()
    rejected = [trial for trial in disturbed.coordinator.history("a") if trial.rejected]
    assert [(trial.kind, trial.note) for trial in rejected] == [
        ("probe", "other work used the device"), ("default", "other work used the device")
    ]  # fmt: skip
    assert disturbed.batches == quiet.batches
    assert len(disturbed.coordinator.history("a")) == len(quiet.coordinator.history("a")) + len(rejected)


def test_constant_disturbance_ends_the_episode_at_what_is_known() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    while not device.trials("a", "choice"):
        assert device.now < 60
        device.tick()
        device.tick()
        device.disturb()
    assert device.batches["a"] == 32
    assert sum(trial.rejected for trial in device.coordinator.history("a")) == 7, "each wait twice as long"
    ended = device.now
    while device.coordinator.idle:
        device.second()
    assert device.now - ended > 200, "it is tried again, but not at once"
    assert device.choice("a").note == "disturbed too often"


def test_a_job_that_does_not_follow_ends_the_episode() -> None:
    coordinator = Coordinator("gpu 0")
    coordinator.handle(joined("a"))
    for second in range(1, 200):
        report = StepReport(at=Seconds(second), job="a", samples=3200, steps=100, wall=Seconds(1), batch=32)
        coordinator.handle(report)
        coordinator.check()
    assert coordinator.idle
    assert coordinator.sizes() == {"a": 32}
    assert coordinator.history("a")[-1].note == "a tenant did not follow in time"


def test_a_silent_job_is_left_out_and_its_return_does_not_start_over_at_once() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.join(QUICK, joined("b"))
    for _ in range(5):
        device.second()
    device.mute.add("b")
    device.settle()
    assert device.choice("a").sizes.keys() == {"a"}
    device.mute.clear()
    for _ in range(100):
        device.second()
        assert device.coordinator.idle
    for _ in range(300):
        device.second()
    assert device.choice("a").sizes.keys() == {"a", "b"}


def test_nobody_pauses_for_long_however_often_others_disturb() -> None:
    device = Device()
    device.join(WAITING, joined("a", floor=0.5))
    device.join(QUICK, joined("b"))
    paused = 0
    while not device.trials("a", "choice"):
        assert device.now < 60
        device.tick()
        paused += bool(device.paused)
        if device.now % 1.25 == 0:
            device.disturb()
    assert device.trials("a", "alone")[0].rejected
    assert paused * TICK < 21


def test_a_job_that_dies_while_others_pause_for_it_does_not_keep_them_waiting() -> None:
    device = Device()
    device.join(WAITING, joined("a", floor=0.5))
    device.join(QUICK, joined("b"))
    while not device.paused:
        device.second()
    device.mute.add("a")
    device.settle()
    assert not device.paused


def test_the_rest_keeps_its_sizes_when_somebody_leaves_and_is_tuned_again_later() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.join(QUICK, joined("b"))
    together = device.settle()
    chosen = dict(device.choice("a").sizes)
    assert chosen["a"] > 32
    assert device.leave("b") == []
    quiet = 0
    while device.coordinator.idle:
        assert device.batches == {"a": chosen["a"]}
        device.second()
        quiet += 1
    assert together / 4 - 1 <= quiet <= together / 4 + 1, "a quarter of the time that they were together"
    device.settle()
    assert device.choice("a").sizes == {"a": device.batches["a"]}
    device.leave("a")
    assert device.settle() == 1, "nothing is left to try"
    assert device.coordinator.sizes() == {}
    assert device.trials("a", "choice"), "what was done is still known after the end"


def test_a_size_that_was_reduced_for_a_neighbour_returns_when_it_leaves() -> None:
    device = Device()
    device.join(Work(fixed=0.0002, per_sample=0.002), joined("a"))
    device.join(QUICK, joined("b"))
    device.settle()
    assert device.choice("a").sizes["a"] < 32
    assert device.leave("b") == [SetBatch("a", 32, 1.0)]


def test_those_that_end_soon_keep_the_sizes_of_the_larger_group() -> None:
    device = Device()
    device.join(QUICK, replace(joined("a"), remaining=Seconds(60)))
    device.join(QUICK, joined("b"))
    device.settle()
    chosen = device.choice("a").sizes["a"]
    assert chosen > 32
    while device.now < 50:
        device.second()
    device.leave("b")
    for _ in range(40):
        device.second()
        assert device.coordinator.idle
        assert device.batches == {"a": chosen}


def test_leaving_in_the_middle_of_a_probe_returns_the_others_to_their_defaults_first() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.join(QUICK, joined("b"))
    while device.batches["a"] == 32:
        device.second()
    assert device.leave("b") == [SetBatch("a", 32, 1.0)]


def test_goodput_far_from_what_was_measured_is_tuned_again_but_not_often() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.settle()
    first = device.now
    device.speed = 0.5
    while len(device.trials("a", "choice")) < 2:
        device.second()
    assert device.now - first > 200
    assert device.now - first < 400
    device.speed = 1.0
    for _ in range(200):
        device.second()
    assert len(device.trials("a", "choice")) == 2


def test_a_job_that_joins_again_under_its_name_starts_afresh() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.settle()
    assert device.batches["a"] != 32
    assert device.join(QUICK, joined("a")) == []
    device.settle()
    assert len(device.trials("a", "choice")) == 2


def test_reports_that_make_no_sense_are_ignored() -> None:
    coordinator = Coordinator("gpu 0")
    coordinator.handle(joined("a"))
    for job, samples, wall in [("nobody", 10, 1.0), ("a", -1, 1.0), ("a", 10, 0.0), ("a", 10, math.nan)]:
        report = StepReport(at=Seconds(1), job=job, samples=samples, steps=1, wall=Seconds(wall), batch=32)
        assert coordinator.handle(report) == []
        assert coordinator.idle


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch": 0}, "batch size 0"),
        ({"batch": 16, "bounds": (32, 64)}, "16 is not within its bounds 32 to 64"),
        ({"bounds": (32, 64)}, "not within its bounds"),
        ({"floor": 1.5}, "floor 1.5"),
        ({"solo": 0.0}, "speed alone"),
    ],
)
def test_a_job_that_contradicts_itself_is_refused_in_words(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Joined(at=Seconds(0), job="a", **wrong)  # type: ignore[arg-type]


def test_jobs_report_more_often_while_something_is_tried() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.join(QUICK, joined("b", bounds=None))
    device.second()
    assert device.every == {"a": 0.3, "b": 0.3}
    device.settle()
    assert device.every == {"a": 1.0, "b": 1.0}


def test_a_job_that_another_agent_had_tuned_goes_back_to_its_owner_s_size_first() -> None:
    device = Device()
    device.join(QUICK, joined("a"))
    device.batches["a"] = 128  # as it was told before the agent died
    device.tick()
    while not device.actions:
        device.tick()
    assert device.actions == [SetBatch("a", 32, 1.0)]
    device.settle()
    assert device.trials("a", "default")[0].sizes == {"a": 32}
    assert device.choice("a").note == "better than the default"


def test_a_job_that_ends_soon_is_tuned_quickly_or_not_at_all() -> None:
    seconds = []
    for remaining in (None, 32.0, 4.0):
        device = Device()
        device.join(QUICK, replace(joined("a"), remaining=None if remaining is None else Seconds(remaining)))
        device.join(HEAVY, joined("b"))
        seconds.append(device.settle())
        assert (gain(device, device.batches) > 1) is (remaining != 4.0)
        if remaining == 4.0:
            assert device.batches == {"a": 32, "b": 32}
    assert seconds[0] > Tuning().share * 32.0 >= seconds[1] > seconds[2]


def test_long_steps_are_measured_for_longer_than_short_ones() -> None:
    device = Device()
    device.join(Work(fixed=0.8, per_sample=0.001), joined("a", bounds=(32, 64)))
    device.settle()
    default, probe = device.coordinator.history("a")[:2]
    assert probe.at - default.at > 2 * 8 * 0.8, "two windows of eight steps"


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from((0.3, 0.5, 0.7, 0.9)), st.sampled_from((0.0, 0.02)))
def test_nobody_is_pushed_below_its_floor(seed: int, floor: float, error: float) -> None:
    chance = np.random.default_rng(seed)
    device = Device(error=error, chance=chance)
    for job in "ab":
        device.join(random_work(chance, 32), joined(job, floor=floor))
    device.settle()
    untuned, tuned = device.speeds(a=32, b=32), device.speeds()
    for job in "ab":
        alone = speeds_of((device.works[job],), (32,))[0]
        assert tuned[job] >= min(floor * alone, untuned[job]) * (1 - 0.01 - 3 * error)


# whatever happens


class AnyOrder(RuleBasedStateMachine):
    """Jobs come, go, fall silent and are disturbed in any order; `Device.send` checks the state after every event."""

    def __init__(self) -> None:
        super().__init__()
        self.device = Device(Coordinator("gpu 0", Tuning(points=36)))
        self.floors: dict[str, float] = {}
        self.newcomers: set[str] = set()
        self.checked = 0

    @rule(
        job=st.sampled_from("abc"),
        work=st.sampled_from((QUICK, HEAVY, WAITING)),
        bounds=st.sampled_from(((8, 64), (32, 256), (16, 128), None)),
        floor=st.sampled_from((None, None, 0.3, 0.8)),
    )
    def join(self, job: str, work: Work, bounds: tuple[int, int] | None, floor: float | None) -> None:
        if job in self.device.works:
            self.device.leave(job)
        self.floors[job] = floor or 0.0
        self.newcomers.add(job)
        self.device.join(work, joined(job, bounds=bounds, floor=floor))

    @precondition(lambda self: self.device.works)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.device.leave(data.draw(st.sampled_from(sorted(self.device.works))))

    @precondition(lambda self: self.device.works)
    @rule(data=st.data())
    def fall_silent_or_speak_again(self, data: st.DataObject) -> None:
        self.device.mute ^= {data.draw(st.sampled_from(sorted(self.device.works)))}

    @rule()
    def disturb(self) -> None:
        self.device.disturb()

    @rule(seconds=st.integers(1, 25))
    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.one_second()

    @rule()
    def wait_until_all_is_settled(self) -> None:
        for _ in range(1500):
            self.one_second()
            if self.device.coordinator.idle:
                return
        raise AssertionError("still trying after 1,500 seconds")

    def one_second(self) -> None:
        self.device.second()
        self.newcomers -= {job for job in self.newcomers if job not in self.device.mute}
        for trial in list(self.device.coordinator._trials)[self.checked :]:
            self.check_trial(trial)
        self.checked = len(self.device.coordinator._trials)

    def check_trial(self, trial: Trial) -> None:
        if trial.kind != "choice" or not trial.measured or self.newcomers or trial.sizes.keys() - self.device.works:
            return
        device = self.device
        assert gain(device, dict(trial.sizes)) >= 0.98
        defaults, chosen = device.speeds(**dict.fromkeys(trial.sizes, 32)), device.speeds(**trial.sizes)
        for job in trial.sizes:
            floor = self.floors[job] * (device.coordinator.solo(job) or 0.0)
            assert chosen[job] >= 0.97 * min(floor, defaults[job])

    def teardown(self) -> None:
        """Even if nobody says anything any more, it comes to rest."""
        self.device.mute = set(self.device.works)
        self.device.settle()
        for job in "abc":
            probes = 0
            for trial in self.device.coordinator.history(job):
                probes = probes + (not trial.rejected) if trial.kind == "probe" else 1
                assert probes <= 8


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck))
TestAnyOrder = AnyOrder.TestCase
