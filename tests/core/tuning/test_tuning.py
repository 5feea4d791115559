# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The joint tuner on made-up and on measured contention."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.interference.kernel import JobType, Pairs, covariance, likeness
from cotenant.core.tuning.candidates import MemoryModel, Point, Tenant, candidate_points, candidate_sizes
from cotenant.core.tuning.goodput import efficiency
from cotenant.core.tuning.model import prior
from cotenant.core.tuning.proposals import Tuner
from cotenant.core.units import MiB
from tests.core.tuning.fifo_device import Work, fifo_speeds, random_work

Speeds = Callable[[Point], Sequence[float]]


def tenant(
    job: str,
    *,
    default: int = 32,
    sizes: tuple[int, ...] = (8, 16, 32, 64, 128),
    noise: float = math.inf,
    floor: float = 0.0,
) -> Tenant:
    return Tenant(job=job, family=job, default=default, sizes=sizes, noise=noise, floor=floor)


def tuned(
    tenants: Sequence[Tenant], speeds: Speeds, *, probes: int = 8, deviation: float = 0.0, seed: int = 0
) -> Point:
    """What the tuner chooses after measuring, with log-normal errors, against exact speeds at the default."""
    chance = np.random.default_rng(seed)
    tuner = Tuner(tenants, candidate_points(tenants), seed=seed)
    base = speeds(tuner.default)
    for _ in range(probes - 1):
        point = tuner.suggest()
        if point is None:
            break
        errors = np.exp(deviation * chance.standard_normal(len(tenants)))
        ratios = [speed / start * error for speed, start, error in zip(speeds(point), base, errors, strict=True)]
        tuner.observe(point, ratios, [deviation] * len(tenants))
    return tuner.choose(margin=0.03 if deviation else 0.0)


def relative_goodputs(tenants: Sequence[Tenant], speeds: Speeds, point: Point) -> list[float]:
    base = speeds(tuple(each.default for each in tenants))
    return [
        speed / start * efficiency(size, each.default, each.noise)
        for speed, start, size, each in zip(speeds(point), base, point, tenants, strict=True)
    ]


# candidates


def test_sizes_are_the_powers_of_two_within_bounds_and_the_default() -> None:
    assert candidate_sizes(32, 8, 130) == (8, 16, 32, 64, 128)
    assert candidate_sizes(48, 20, 100) == (32, 48, 64)
    assert candidate_sizes(5, 5, 5) == (5,)
    assert candidate_sizes(1, 1, 4) == (1, 2, 4)


def test_sizes_that_do_not_fit_into_the_slice_are_left_out() -> None:
    memory = MemoryModel(baseline=MiB(1000), per_sample=10.0, limit=MiB(2000))
    assert candidate_sizes(32, 8, 1024, memory) == (8, 16, 32, 64)
    assert candidate_sizes(256, 256, 1024, memory) == (256,), "the default is what the owner runs anyway"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 300))
def test_points_begin_with_the_default_and_the_nearest_are_kept(counts: list[int], most: int) -> None:
    tenants = [tenant(str(i), default=64, sizes=tuple(64 << n for n in range(count))) for i, count in enumerate(counts)]
    points = candidate_points(tenants, most)
    assert points[0] == (64,) * len(counts)
    assert len(set(points)) == len(points) == min(most, math.prod(counts))
    far = [sum(math.log2(size / 64) for size in point) for point in points]
    assert far == sorted(far)


# belief


job_types = st.lists(
    st.builds(JobType, st.sampled_from("abc"), st.sampled_from((8, 16, 32, 64)), st.sampled_from((0.01, 0.03, 0.3))),
    min_size=2,
    max_size=6,
    unique=True,
)


@given(job_types)
def test_likeness_of_pairs_is_a_covariance(types: list[JobType]) -> None:
    count = len(types)
    pairs = Pairs(np.repeat(np.arange(count), count), np.tile(np.arange(count), count))
    together = covariance(likeness(types), pairs, pairs)
    assert np.allclose(together, together.T)
    assert np.linalg.eigvalsh(together).min() > 0


def test_what_was_measured_exactly_is_believed_and_its_neighbours_move_with_it() -> None:
    tenants = [tenant("a"), tenant("b")]
    points = candidate_points(tenants)
    belief = prior(tenants, points, against_default=True, chance=np.random.default_rng(0))
    before = belief.mean.copy()
    place, near = points.index((64, 32)), points.index((128, 32))
    belief.condition([place], np.array([1.0]), np.array([1e-6]))
    assert belief.mean[place] == pytest.approx(1.0, abs=1e-3)
    assert belief.draws[:, place] == pytest.approx(1.0, abs=0.02)
    assert belief.mean[near] > before[near] + 0.1
    assert belief.mean[points.index((32, 32))] == belief.mean[25 + points.index((32, 32))] == 0, "the reference itself"


def test_order_of_measurements_does_not_matter_to_the_mean() -> None:
    tenants = [tenant("a"), tenant("b"), tenant("c", sizes=(32,))]
    points = candidate_points(tenants)
    there, back = (prior(tenants, points, against_default=True, chance=np.random.default_rng(0)) for _ in range(2))
    seen = [([3, 28], np.array([0.3, -0.2]), np.array([0.01, 0.02])), ([7], np.array([0.1]), np.array([0.01]))]
    for measurement in seen:
        there.condition(*measurement)
    for measurement in reversed(seen):
        back.condition(*measurement)
    assert there.mean == pytest.approx(back.mean)


def test_draws_agree_with_the_mean() -> None:
    tenants = [tenant("a"), tenant("b")]
    belief = prior(tenants, candidate_points(tenants), against_default=True, chance=np.random.default_rng(1))
    belief.condition([3, 28], np.array([0.3, -0.2]), np.array([1e-3, 1e-3]))
    errors = np.abs(belief.draws.mean(axis=0) - belief.mean) / (belief.draws.std(axis=0) + 1e-9)
    assert errors.max() < 4 / math.sqrt(len(belief.draws))


# choice


def test_nothing_is_suggested_twice_and_nothing_when_all_is_known() -> None:
    tenants = [tenant("a", sizes=(32, 64)), tenant("b", sizes=(16, 32, 64))]
    tuner = Tuner(tenants, candidate_points(tenants))
    seen = {tuner.default}
    while (point := tuner.suggest()) is not None:
        assert point not in seen
        seen.add(point)
        tuner.observe(point, [1.0, 1.0])
    assert len(seen) == 6


def test_the_default_stays_unless_something_is_better_by_a_margin() -> None:
    tuner = Tuner([tenant("a")], [(32,), (64,), (128,)])
    tuner.observe((64,), [1.02])
    assert tuner.choose(margin=0.03) == (32,)
    assert tuner.choose(margin=0.01) == (64,)
    tuner.observe((128,), [0.5])
    assert tuner.choose(margin=0.0) == (64,)


def test_speed_that_was_bought_with_efficiency_is_no_gain() -> None:
    tuner = Tuner([tenant("a", noise=32.0)], [(32,), (128,)])
    tuner.observe((128,), [2.0])  # worth (32 + 32) / (32 + 128) = 0.4 of it
    assert tuner.choose() == (32,)


def test_a_second_look_corrects_a_lucky_first_one() -> None:
    tuner = Tuner([tenant("a")], [(32,), (64,)])
    tuner.observe((64,), [1.1], [0.03])
    assert tuner.choose() == (64,)
    tuner.observe((64,), [0.95], [0.03])
    assert tuner.choose() == (32,)


def test_a_point_below_a_floor_is_neither_kept_nor_hoped_for() -> None:
    tenants = [tenant("a", sizes=(32, 64)), tenant("b", sizes=(32,), floor=0.9)]
    tuner = Tuner(tenants, candidate_points(tenants))
    tuner.observe((64, 32), [3.0, 0.85])
    assert tuner.choose() == (32, 32)
    free = Tuner([tenants[0], tenant("b", sizes=(32,))], candidate_points(tenants))
    free.observe((64, 32), [3.0, 0.85])
    assert free.choose() == (64, 32)


def with_floor(floor: float) -> Tuner:
    """A job whose size may change, and a neighbour with a floor."""
    tenants = [tenant("a", sizes=(16, 32, 64, 128)), tenant("b", sizes=(32,), floor=floor)]
    return Tuner(tenants, candidate_points(tenants))


def test_a_point_that_was_measured_below_a_floor_is_not_kept_even_if_it_is_believed_to_be_above() -> None:
    for floor, kept in ((0.0, (64, 32)), (0.9, (32, 32))):
        tuner = with_floor(floor)
        tuner.observe((64, 32), [3.0, 0.85], [0.01, 0.5])  # so uncertain that the belief hardly changes
        assert tuner.speeds((64, 32))[1] > 0.95
        assert tuner.choose() == kept


def test_a_point_that_is_believed_to_be_below_a_floor_is_not_kept_even_if_it_was_measured_above() -> None:
    for floor, kept in ((0.0, (64, 32)), (0.9, (32, 32))):
        tuner = with_floor(floor)
        tuner.observe((64, 32), [3.0, 0.92], [0.01, 0.5])
        tuner.observe((128, 32), [1.0, 0.4], [0.01, 0.01])
        assert tuner.speeds((64, 32))[1] < 0.75
        assert tuner.choose() == kept


def test_a_point_that_is_believed_to_be_below_a_floor_is_not_measured_first() -> None:
    def suggested(floor: float) -> Point | None:
        tuner = with_floor(floor)
        tuner.observe((64, 32), [2.0, 0.7], [0.01, 0.01])
        return tuner.suggest()

    assert suggested(0.0) == (128, 32)
    assert suggested(0.9) == (16, 32)


def test_a_floor_holds_for_samples_as_well_as_for_goodput() -> None:
    tuner = Tuner([tenant("a", noise=1.0, floor=0.9)], [(32,), (16,)])
    tuner.observe((16,), [0.8])  # goodput 0.8 * 33 / 17 is well above 1
    assert tuner.choose() == (32,)


def test_same_measurements_give_the_same_suggestions() -> None:
    def suggestions() -> list[Point | None]:
        tenants = [tenant("a"), tenant("b", default=8)]
        tuner = Tuner(tenants, candidate_points(tenants), seed=3)
        made: list[Point | None] = []
        for _ in range(4):
            made.append(tuner.suggest())
            if made[-1] is not None:
                tuner.observe(made[-1], [1.1, 0.9], [0.03, 0.03])
        return made

    assert suggestions() == suggestions()


def test_a_job_alone_finds_its_best_size() -> None:
    alone = [Tenant(job="a", family="a", default=16, sizes=candidate_sizes(16, 4, 512), noise=200.0)]
    work = Work(fixed=0.01, per_sample=0.0002)

    def speeds(point: Point) -> Sequence[float]:
        return fifo_speeds([work], point)

    best = max(alone[0].sizes, key=lambda size: relative_goodputs(alone, speeds, (size,))[0])
    assert tuned(alone, speeds) == (best,)


# contention: a step holds the engine, input waits outside


@cache
def contended(seed: int, jobs: int) -> tuple[list[Tenant], Speeds]:
    """Unrelated jobs that share one FIFO engine."""
    chance = np.random.default_rng(seed)
    defaults = [int(2 ** chance.integers(2, 7)) for _ in range(jobs)]
    works = [random_work(chance, default) for default in defaults]
    tenants = [
        Tenant(
            job=str(i),
            family=str(i),
            default=default,
            sizes=candidate_sizes(default, max(1, default // 4), default * 8),
            noise=default * 2.0 ** chance.uniform(0, 6),
            step_seconds=work.fixed + work.per_sample * default,
        )
        for i, (default, work) in enumerate(zip(defaults, works, strict=True))
    ]
    return tenants, cache(lambda point: tuple(fifo_speeds(works, point)))


def selfish(tenants: Sequence[Tenant], speeds: Speeds) -> Point:
    """Each takes the size that is best for itself while the others keep theirs."""
    default = tuple(each.default for each in tenants)

    def own(i: int) -> Callable[[int], float]:
        return lambda size: relative_goodputs(tenants, speeds, (*default[:i], size, *default[i + 1 :]))[i]

    return tuple(max(each.sizes, key=own(i)) for i, each in enumerate(tenants))


@pytest.mark.parametrize(("jobs", "seeds"), [(2, 20), (3, 3)])
def test_joint_sizes_are_never_worse_than_the_default_and_better_than_selfish_ones(jobs: int, seeds: int) -> None:
    joint, alone = [], []
    for seed in range(seeds):
        tenants, speeds = contended(seed, jobs)
        chosen = relative_goodputs(tenants, speeds, tuned(tenants, speeds, deviation=0.03, seed=seed))
        joint.append(statistics.harmonic_mean(chosen))
        alone.append(statistics.harmonic_mean(relative_goodputs(tenants, speeds, selfish(tenants, speeds))))
    assert min(joint) > 0.97, "within the noise"
    assert statistics.mean(joint) > 1.08
    assert statistics.mean(joint) > statistics.mean(alone) + 0.04


@settings(max_examples=15)
@given(st.integers(0, 1000), st.sampled_from((1, 2)))
def test_exact_measurements_never_choose_worse_than_the_default(seed: int, jobs: int) -> None:
    tenants, speeds = contended(seed, jobs)
    point = tuned(tenants, speeds, probes=5)
    assert statistics.harmonic_mean(relative_goodputs(tenants, speeds, point)) >= 1 - 1e-9
