# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The predictor: what it learns from measured pairs, and what no input may make it say."""

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.core import interference
from cotenant.core.interference import Predictor, PredictorState, Profile, Signature, Speed
from cotenant.core.interference.catalogue import MOST_TYPES, Catalogue
from cotenant.core.interference.factorisation import factorise
from cotenant.core.interference.fitting import Measured, fit_shares
from cotenant.core.interference.kernel import SHARES, Pairs, Shares, beside_all, covariance, variance
from cotenant.core.interference.learned import NOISE, START, Fit, Learned, Values
from cotenant.core.interference.left_out import Counts, Errors, errors_of, novelty_of
from cotenant.core.interference.observations import MOST_ACTIVE, MOST_ROWS, Row
from cotenant.core.interference.posterior import JITTER, Posterior
from cotenant.errors import InputError

FAMILIES = "abcde"
TYPES = [Signature(family, 16 << i, 0.01 * 2.0 ** (i + j)) for j, family in enumerate(FAMILIES) for i in range(4)]


def true_speed(victim: Signature, partner: Signature) -> float:
    """A made-up world with sensitive and aggressive families, smooth in batch size, and a special pair."""
    sensitive = 0.1 * FAMILIES.index(str(victim.family))
    aggressive = 0.08 * FAMILIES.index(str(partner.family)) + 0.03 * math.log2((partner.batch or 1) / 16)
    special = 0.3 if {victim.family, partner.family} == {"a", "b"} else 0.0
    return 1 / (1.1 + sensitive + aggressive + special)


def all_pairs(types: Sequence[Signature] = TYPES, seed: int = 0) -> list[tuple[Signature, Signature]]:
    pairs = [(one, other) for i, one in enumerate(types) for other in types[: i + 1]]
    return [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]


def taught(pairs: Sequence[tuple[Signature, Signature]]) -> Predictor:
    predictor = Predictor()
    for one, other in pairs:
        assert predictor.observe(one, other, true_speed(one, other), true_speed(other, one))
    return predictor


def mean_error(predictor: Predictor, pairs: Sequence[tuple[Signature, Signature]]) -> float:
    return float(np.mean([abs(predictor.pair(*pair)[0].mean - true_speed(*pair)) for pair in pairs]))


def is_sane(speed: Speed) -> bool:
    return 0 < speed.low <= speed.mean <= speed.high <= 1.5


def test_nothing_is_known_at_first_and_the_interval_says_so() -> None:
    for speed in Predictor().pair(TYPES[0], Signature(None, None, None)):
        assert is_sane(speed)
        assert 0.4 < speed.mean < 0.7
        assert speed.high - speed.low > 0.7


def test_a_measured_pair_is_known_as_measured() -> None:
    predictor = taught([(TYPES[0], TYPES[5])])
    there, back = predictor.pair(TYPES[0], TYPES[5])
    assert there.mean == pytest.approx(true_speed(TYPES[0], TYPES[5]), abs=0.01)
    assert back.mean == pytest.approx(true_speed(TYPES[5], TYPES[0]), abs=0.01)
    assert predictor.known(TYPES[5], TYPES[0])
    assert not predictor.known(TYPES[0], TYPES[6])
    assert not predictor.known(TYPES[0], Signature("stranger", 1, 1.0))


def test_one_direction_alone_is_not_a_known_pair() -> None:
    predictor = Predictor()
    assert predictor.observe_one(TYPES[0], TYPES[5], 0.4)
    assert not predictor.known(TYPES[0], TYPES[5])
    assert predictor.observe_one(TYPES[5], TYPES[0], 0.9)
    assert predictor.known(TYPES[0], TYPES[5])
    assert [speed.mean for speed in predictor.pair(TYPES[0], TYPES[5])] == pytest.approx([0.4, 0.9], abs=0.02)


def test_unseen_pairs_are_told_from_seen_ones_and_intervals_hold_nine_of_ten() -> None:
    pairs = all_pairs()
    predictor, unseen = taught(pairs[:60]), pairs[60:]
    mean = np.mean([true_speed(*pair) for pair in pairs[:60]])
    naive = np.mean([abs(mean - true_speed(*pair)) for pair in unseen])
    assert mean_error(predictor, unseen) < naive / 4
    held = [(speed := predictor.pair(*pair)[0]).low <= true_speed(*pair) <= speed.high for pair in unseen]
    assert np.mean(held) > 0.8
    assert np.mean([predictor.pair(*pair)[0].high - predictor.pair(*pair)[0].low for pair in unseen]) < 0.2


def test_a_stranger_is_told_with_less_confidence_than_a_relative() -> None:
    predictor = taught(all_pairs()[:100])
    relative = predictor.pair(Signature("a", 256, 0.16), TYPES[9])[0]
    stranger = predictor.pair(Signature("z", 256, 0.16), TYPES[9])[0]
    assert stranger.high - stranger.low > 2 * (relative.high - relative.low)


@pytest.mark.parametrize("side", ["victim", "partner"])
def test_the_interval_of_a_stranger_is_as_wide_as_the_oddest_family_asks_for(side: str) -> None:
    """Without the family `a`, which was measured on one side only, nobody could have told its speeds."""
    odd, others = TYPES[:4], TYPES[4:]
    predictor = Predictor()
    for number, victim in enumerate(others):
        for partner in others[number % 3 :: 3]:
            assert predictor.observe_one(victim, partner, 0.9)
    for one in odd:
        for other in others:
            assert predictor.observe_one(*((one, other) if side == "victim" else (other, one)), 0.2)
    stranger = predictor.pair(Signature("z", 256, 0.16), TYPES[9])[0]
    assert stranger.high - stranger.low > 0.8  # 0.42 and less if only the other side is left out


def test_both_of_one_type_fare_alike() -> None:
    predictor = taught([pair for pair in all_pairs() if pair != (TYPES[0], TYPES[0])])
    assert predictor.observe(TYPES[0], TYPES[0], 0.3, 0.5)
    one, other = predictor.pair(TYPES[0], TYPES[0])
    assert one == other
    assert one.mean == pytest.approx(0.4, abs=0.03)


def test_a_type_is_learned_once_whatever_its_step_time_was_measured_as() -> None:
    predictor = Predictor()
    assert predictor.learn(TYPES[0]) == 0
    assert predictor.learn(TYPES[1]) == 1
    assert predictor.learn(TYPES[0]._replace(step_seconds=0.0101)) == 0
    assert predictor.learn(TYPES[0]._replace(step_seconds=0.02)) == 2


@pytest.mark.parametrize("speed", [math.nan, 0.0, -0.5, math.inf, 1000.0, 1.6])
def test_speeds_that_make_no_sense_are_refused_and_change_nothing(speed: float) -> None:
    predictor = taught(all_pairs()[:30])
    before = predictor.state()
    assert not predictor.observe(TYPES[0], TYPES[7], speed, 0.5)
    assert not predictor.observe(TYPES[0], TYPES[7], 0.5, speed)
    assert not predictor.observe_one(TYPES[0], TYPES[7], speed)
    assert predictor.state() == before


def test_repeated_measurements_are_averaged_and_grow_nothing() -> None:
    predictor = Predictor()
    for speed in (0.48, 0.52, 0.49, 0.51, 0.5, 0.5, 0.5, 0.5, 0.5):
        predictor.observe(TYPES[0], TYPES[5], speed, 0.8)
    assert len(predictor.state().rows) == 2
    assert predictor.pair(TYPES[0], TYPES[5])[0].mean == pytest.approx(0.5, abs=0.005)


def test_one_outlier_hardly_moves_a_pair_that_is_well_known() -> None:
    predictor = taught(all_pairs()[:80])
    pair = all_pairs()[0]
    for _ in range(3):
        predictor.observe(*pair, true_speed(*pair), true_speed(*pair[::-1]))
    before = predictor.pair(*pair)[0].mean
    predictor.observe(*pair, 0.05, true_speed(*pair[::-1]))
    assert abs(predictor.pair(*pair)[0].mean - before) < 0.05


def test_a_lasting_change_is_followed() -> None:
    predictor = Predictor()
    for speed in [0.8] * 20 + [0.5] * 60:
        predictor.observe_one(TYPES[0], TYPES[5], speed)
    assert predictor.pair(TYPES[0], TYPES[5])[0].mean == pytest.approx(0.5, abs=0.02)


def test_rows_and_types_are_bounded() -> None:
    predictor = Predictor()
    chance = np.random.default_rng(3)
    types = [Signature(f"{i}", None, None) for i in range(MOST_TYPES + 50)]
    numbers = {predictor.learn(kind) for kind in types}
    assert numbers == set(range(MOST_TYPES))
    pairs = [(types[i], types[j]) for i in range(MOST_TYPES) for j in range(i)][: MOST_ROWS // 2 + 1]
    predictor = Predictor.of(
        interference.Measured(victim, partner, chance.uniform(0.2, 1), 1)
        for pair in pairs[:-1]
        for victim, partner in (pair, pair[::-1])
    )
    assert predictor.observe(*pairs[-1], 0.5, 0.6)
    assert len(predictor.state().rows) == MOST_ROWS
    assert not predictor.known(*pairs[0])
    assert predictor.known(*pairs[-1])


def test_a_type_too_many_is_taken_for_its_next_relative() -> None:
    catalogue = Catalogue()
    for i in range(MOST_TYPES):
        catalogue.number(Signature(f"{i // 8}", 1 << (i % 8), 1.0))
    assert catalogue.number(Signature("3", 1 << 12, 1.0)) == 3 * 8 + 7


def test_types_that_were_only_asked_about_make_room_for_new_ones() -> None:
    predictor = taught(all_pairs()[:60])
    before = predictor.pair(TYPES[0], TYPES[5])
    stranger = predictor.pair(Signature("z", None, None), TYPES[9])
    for i in range(2 * MOST_TYPES):
        predictor.pair(Signature(f"once-{i}", None, None), TYPES[i % len(TYPES)])
    # With very many types, one without a measurement is predicted by an average over its relatives.
    assert predictor.pair(Signature("new", None, None), TYPES[9])[0].mean == pytest.approx(stranger[0].mean, abs=0.1)
    assert predictor.pair(TYPES[0], TYPES[5])[0] == pytest.approx(before[0])
    predictor.observe(Signature("new", None, None), TYPES[9], 0.2, 0.3)
    known = [signature.family for signature in predictor.state().types]
    assert len(known) == len(set(taught(all_pairs()[:60]).state().types)) + 1
    assert "new" in known


def test_several_neighbours_slow_a_job_more_than_each_of_them_and_are_less_certain() -> None:
    predictor = taught(all_pairs()[:100])
    one, *others = TYPES[0], TYPES[5], TYPES[10]
    each = [predictor.pair(one, other)[0] for other in others]
    both = predictor.beside(one, others)
    assert is_sane(both)
    assert both.mean == pytest.approx(math.prod(speed.mean for speed in each))
    assert both.mean / both.low > max(speed.mean / speed.low for speed in each)
    assert predictor.beside(one, []) == Speed(1.0, 1.0, 1.0)
    assert predictor.beside(one, others[:1]) == pytest.approx(each[0])


def test_many_partners_at_once_give_what_pairs_give_one_by_one() -> None:
    predictor = taught(all_pairs()[:60])
    numbers = np.array([predictor.learn(kind) for kind in TYPES])
    for _ in range(2):
        speeds = predictor.speeds(TYPES[3], np.tile(numbers, 3))
        for i, other in enumerate(TYPES):
            there, back = predictor.pair(TYPES[3], other)
            found = [column[i + len(TYPES)] for column in speeds]
            assert found == pytest.approx([there.mean, there.low, back.mean, back.low], rel=1e-9)
        predictor.observe(*all_pairs()[70], 0.9, 0.2)  # what was computed before is not used any more


def test_chosen_probes_tell_more_of_a_new_job_than_unlucky_ones() -> None:
    new = [kind for kind in TYPES if kind.family == "d"][1]
    known = [pair for pair in all_pairs() if all(kind.family != "d" for kind in pair)]
    partners = [kind for kind in TYPES if kind.family != "d"]
    chosen = taught(known).probes(new, partners, 3)
    assert len(set(chosen)) == 3
    assert len({kind.family for kind in chosen}) == 3  # relatives would say the same thing thrice
    one_family = [kind for kind in partners if kind.family == "c"][:3]
    tests = [(new, kind) for kind in partners if kind not in (*chosen, *one_family)]
    errors = [mean_error(taught([*known, *((new, kind) for kind in some)]), tests) for some in (chosen, one_family)]
    assert errors[0] < errors[1]


def test_what_is_known_is_not_worth_a_probe() -> None:
    predictor = taught([(TYPES[0], TYPES[5])] * 8)
    assert predictor.probes(TYPES[0], [TYPES[5], TYPES[10]], 1) == [TYPES[10]]
    assert predictor.probes(TYPES[0], [], 3) == []


def test_jobs_without_relatives_are_predicted_from_how_they_fared() -> None:
    types = [Signature(f"{i}", None, None) for i in range(14)]
    chance = np.random.default_rng(5)
    sides = chance.uniform(0.5, 0.95, (2, 14))

    def speed(i: int, j: int) -> float:
        return float(sides[0, i] * sides[1, j])

    pairs = [(i, j) for i in range(14) for j in range(i)]
    order = chance.permutation(len(pairs))
    predictor = Predictor()
    for i, j in (pairs[k] for k in order[:60]):
        predictor.observe(types[i], types[j], speed(i, j), speed(j, i))
    for i, j in (pairs[k] for k in order[60:]):
        there, back = predictor.pair(types[i], types[j])
        assert is_sane(there)
        assert [there.mean, back.mean] == pytest.approx([speed(i, j), speed(j, i)], abs=0.12)
    i, j = pairs[order[0]]
    assert predictor.pair(types[i], types[j])[0].mean == pytest.approx(speed(i, j), abs=0.02)


@pytest.mark.slow
def test_the_error_still_falls_with_more_rows_than_are_active_and_speeds_above_alone_are_predicted() -> None:
    types = [Signature(f"{i // 2}", 1 << (i % 2), 0.1) for i in range(44)]
    chance = np.random.default_rng(2)
    families = chance.normal(0.9, 0.12, (22, 22))

    def speed(i: int, j: int) -> float:
        return float(np.clip(families[i // 2, j // 2] + 0.01 * ((i + j) % 4), 0.3, 1.19))

    pairs = all_pairs(types)
    numbers = {kind: i for i, kind in enumerate(types)}
    errors = []
    predictor = Predictor()
    for known in (200, 700):
        predictor = Predictor.of(
            interference.Measured(one, other, speed(numbers[one], numbers[other]), 1)
            for pair in pairs[:known]
            for one, other in (pair, pair[::-1])
        )
        found = [(predictor.pair(*pair)[0].mean, speed(*(numbers[kind] for kind in pair))) for pair in pairs[700:]]
        errors.append(float(np.mean([abs(predicted - true) for predicted, true in found])))
        assert max(predicted for predicted, _ in found) > 1.0
    assert len(predictor.state().rows) > 2 * MOST_ACTIVE
    assert errors[1] < 0.75 * errors[0]


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_measurement_are_not_taken_for_knowledge_about_other_pairs(seed: int) -> None:
    """All jobs run at 0.8 beside all others, and each measurement has an error of 0.1."""
    chance = np.random.default_rng(seed)
    types = [Signature(f"{i // 3}", 1 << (i % 3), 0.1 * 2.0 ** (i % 7)) for i in range(24)]
    pairs = all_pairs(types, seed)
    predictor = Predictor()
    for pair in pairs[:200]:
        predictor.observe(*pair, *np.clip(chance.normal(0.8, 0.1, 2), 0.1, 1.4).tolist())
    errors = [abs(speed.mean - 0.8) for pair in pairs[200:] for speed in predictor.pair(*pair)]
    assert np.mean(errors) < 0.033


def noisy_values(catalogue: Catalogue, pairs: Sequence[tuple[Signature, Signature]]) -> Values:
    chance = np.random.default_rng(3)
    rows = [row for one, other in pairs for row in dict.fromkeys([(one, other), (other, one)])]
    numbers = np.array([[catalogue.number(job) for job in row] for row in rows])
    roots = np.sqrt([true_speed(*row) for row in rows]) + chance.normal(0, 0.01, len(rows))
    return Values(Pairs(*numbers.T), roots)


def test_what_the_model_takes_for_noise_is_accounted_for_at_the_measured_pairs_only() -> None:
    catalogue = Catalogue()
    values = noisy_values(catalogue, all_pairs()[:60])
    first, second = ([share / 100 for share in shares] for shares in START)  # so that most is taken for noise
    model = Learned(catalogue.traits, values, first, second)
    assert model.accounted[values.pairs] == pytest.approx(values.roots, abs=0.002)
    assert np.abs(model.table[values.pairs] - values.roots).mean() > 0.002
    others = np.ones_like(model.table, np.bool_)
    others[values.pairs] = False
    assert (model.accounted[others] == model.table[others]).all()


def test_intervals_are_wider_the_less_was_measured_of_both_jobs() -> None:
    catalogue = Catalogue()
    values = noisy_values(catalogue, all_pairs()[:120])
    stranger, relative = catalogue.number(Signature("z", 64, 0.2)), catalogue.number(Signature("a", 7, 0.3))
    errors = errors_of(catalogue.traits, values, START)
    counts = Counts.of(values.pairs, catalogue.families)
    known = int(np.argmax(counts.types))
    pairs = Pairs(np.array([known, relative, stranger]), np.full(3, known))
    widths = errors.widths(novelty_of(pairs, counts, catalogue.families))
    assert widths[0] < widths[1] < widths[2]
    rare = Counts(counts.types / 10, counts.families)
    assert errors.widths(novelty_of(pairs, rare, catalogue.families))[0] > widths[0]


def test_a_world_of_one_family_says_that_nothing_is_known_about_others() -> None:
    catalogue = Catalogue()
    values = noisy_values(catalogue, all_pairs(TYPES[:4]))
    stranger = catalogue.number(Signature("z", 64, 0.2))
    errors = errors_of(catalogue.traits, values, START)
    novelty = novelty_of(
        Pairs(np.array([stranger]), np.array([0])), Counts.of(values.pairs, catalogue.families), catalogue.families
    )
    assert errors.widths(novelty)[0] > values.roots.std()


def test_measured_pairs_are_counted_as_they_come_and_go() -> None:
    predictor = taught(all_pairs()[:40])
    predictor.observe_one(TYPES[0], TYPES[1], 0.5)
    rows = predictor.state().rows
    pairs = Pairs(np.array([row.victim for row in rows]), np.array([row.partner for row in rows]))
    numbers = [predictor.learn(kind) for kind in predictor.state().types]
    seen = Counts.of(pairs, np.arange(len(numbers)))
    measured = predictor._seen.counts
    assert [measured.types[number] for number in numbers] == seen.types[: len(numbers)].tolist()
    measured.add(Pairs(*np.array(list(predictor._seen._rows)).T), predictor._catalogue.families, -1.0)
    assert not measured.types.any()
    assert not measured.families.any()


@pytest.mark.parametrize("profile", [None, Profile(utilisation=0.4, memory_mib=9000.0)])
def test_one_job_beside_all_is_what_the_covariance_of_each_pair_gives(profile: Profile | None) -> None:
    catalogue, chance = Catalogue(), np.random.default_rng(4)
    numbers = [catalogue.number(kind) for kind in [*TYPES, Signature("z", None, None, profile)]]
    chosen = Pairs(*chance.permutation([(i, j) for i in numbers for j in numbers])[:90].T)
    shares = Shares(**{name: float(chance.uniform(0.01, 1)) for name in Shares.__dataclass_fields__})
    weights = chance.normal(size=90)
    every = np.arange(len(numbers))
    for one in (0, 7, numbers[-1]):
        beside, under = beside_all(catalogue.likeness, one, chosen, weights, shares)
        own = np.full(len(every), one)
        for found, pairs in ((beside, Pairs(own, every)), (under, Pairs(every, own))):
            expected = covariance(catalogue.likeness, pairs, chosen, shares) @ weights
            assert found[: len(every)] == pytest.approx(expected, abs=1e-9)


def test_a_model_of_nearly_the_same_rows_is_kept_when_they_are_recalled() -> None:
    rows = [
        interference.Measured(victim, partner, true_speed(victim, partner), 1)
        for one, other in all_pairs()[:90]
        for victim, partner in {(one, other), (other, one)}
    ]
    before = Predictor.of(rows[:-4])
    before.pair(TYPES[0], TYPES[1])
    after = Predictor.of(rows, before)
    first, second = before.state().fit, after.state().fit
    assert first is not None
    assert second is not None
    assert second.first == first.first
    fresh = Predictor.of(rows)
    for pair in all_pairs()[90:110]:
        assert after.pair(*pair)[0].mean == pytest.approx(fresh.pair(*pair)[0].mean, abs=0.05)


def test_a_new_family_is_taken_into_the_model_after_a_few_measurements() -> None:
    others = [kind for kind in TYPES if kind.family != "a"]
    rows = [
        interference.Measured(victim, partner, true_speed(victim, partner), 1)
        for one, other in all_pairs(others)[:80]
        for victim, partner in dict.fromkeys([(one, other), (other, one)])
    ]
    before = Predictor.of(rows)
    before.pair(others[0], others[1])
    solved = before.state().fit
    assert solved is not None
    probes = [
        interference.Measured(victim, partner, true_speed(victim, partner), 1)
        for other in others[::4]
        for victim, partner in [(TYPES[0], other), (other, TYPES[0])]
    ]
    for after in (Predictor.of(rows + probes, before), before):
        if after is before:
            for one in probes:
                before.observe_one(one.victim, one.partner, one.speed)
        after.pair(TYPES[0], others[0])
        renewed = after.state().fit
        assert renewed is not None
        assert renewed.solved == len(rows) + len(probes)
        assert renewed.rows == solved.rows, "the shares are not fitted again"
        assert mean_error(after, [(TYPES[0], other) for other in others if other not in others[::4]]) < 0.05


def test_measurements_that_spread_over_all_families_do_not_solve_the_model_again() -> None:
    predictor = taught(all_pairs()[:90])
    predictor.pair(TYPES[0], TYPES[1])
    solved = predictor.state().fit
    assert solved is not None
    for one, other in all_pairs()[90:97]:
        predictor.observe(one, other, true_speed(one, other), true_speed(other, one))
        predictor.pair(TYPES[0], TYPES[1])
    renewed = predictor.state().fit
    assert renewed is not None
    assert renewed.solved == solved.solved


def test_factors_find_a_table_of_low_rank() -> None:
    chance = np.random.default_rng(1)
    table = 0.6 + 0.2 * chance.normal(size=(20, 1)) @ chance.normal(size=(1, 20))
    victims, partners = np.nonzero(chance.random((20, 20)) < 0.6)
    factors = factorise(Pairs(victims, partners), table[victims, partners], 20)
    rest = Pairs(*np.nonzero(np.ones((20, 20))))
    error = np.abs(factors.predict(rest) - table[rest.victims, rest.partners]).mean()
    assert error < np.abs(table - table.mean()).mean() / 3


def test_a_profile_brings_a_stranger_near_to_those_who_are_like_it() -> None:
    def kind(name: str, utilisation: float) -> Signature:
        return Signature(name, None, None, Profile(utilisation=utilisation, memory_mib=1000 * (1 + utilisation)))

    heavy, light = [kind(f"h{i}", 0.9) for i in range(4)], [kind(f"l{i}", 0.2) for i in range(4)]
    predictor = Predictor()
    for one in heavy + light:
        predictor.observe_one(TYPES[0], one, 0.3 if one in heavy else 0.9)
    slow, quick = (predictor.pair(TYPES[0], kind(f"new{share}", share))[0].mean for share in (0.9, 0.2))
    assert slow < quick - 0.05


def test_profiles_of_a_known_program_do_not_split_it_into_types() -> None:
    catalogue = Catalogue()
    first = catalogue.number(Signature("a", 8, 0.1, Profile(utilisation=0.44)))
    assert catalogue.number(Signature("a", 8, 0.1, Profile(utilisation=0.46))) == first
    assert catalogue.number(Signature(None, 8, 0.1, Profile(utilisation=0.44))) != catalogue.number(
        Signature(None, 8, 0.1, Profile(utilisation=0.66))
    )


def test_state_survives_json_exactly() -> None:
    predictor = taught(all_pairs()[:40])
    predictor.observe(Signature(None, None, 0.3, Profile(utilisation=0.5)), TYPES[0], 0.5, 0.7)
    stored = predictor.state()
    loaded = msgspec.json.decode(msgspec.json.encode(stored), type=PredictorState)
    again = Predictor.restore(loaded)
    assert loaded == stored == again.state()
    for pair in all_pairs()[:60]:
        for one, other in zip(predictor.pair(*pair), again.pair(*pair), strict=True):
            assert one == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize(
    "state",
    [
        PredictorState(version=2),
        PredictorState(types=(TYPES[0],), rows=(Row(0, 1, 0.7, 1),)),
        PredictorState(types=(TYPES[0],), rows=(Row(0, -1, 0.7, 1),)),
        PredictorState(types=(TYPES[0],), rows=(Row(0, 0, math.nan, 1),)),
        PredictorState(types=(TYPES[0],), rows=(Row(0, 0, 30.0, 1),)),
        PredictorState(types=(TYPES[0],), rows=(Row(0, 0, 0.7, 0),)),
        PredictorState(shares=replace(SHARES, constant=-1.0)),
        PredictorState(fit=Fit(first=(), second=(), rows=64, solved=64)),
        PredictorState(errors=Errors(weights=(1.0, -1.0), factors=(1.0, 1.0, 1.0))),
        PredictorState(errors=Errors(weights=(1.0, 0.0), factors=(1.0, 1.0, math.nan))),
        PredictorState(shares=replace(SHARES, types=math.nan)),
        PredictorState(shares=replace(SHARES, types=1e308)),
    ],
)
def test_a_stored_predictor_that_makes_no_sense_is_refused_with_a_line(state: PredictorState) -> None:
    with pytest.raises(InputError, match=r"^stored predictor: [^\n]+$"):
        Predictor.restore(state)


speeds = st.floats(0.05, 1.5)
kinds = st.sampled_from(TYPES)
hostile_kinds = st.builds(
    Signature,
    st.none() | st.sampled_from(["", "a", "\0", "x" * 1000]),
    st.none() | st.integers(-5, 2**70),
    st.none() | st.floats(),
    st.none() | st.builds(Profile, utilisation=st.none() | st.floats(), memory_mib=st.none() | st.floats()),
)


@given(st.lists(st.tuples(hostile_kinds, hostile_kinds, st.floats(), st.floats()), max_size=12))
@example([(TYPES[0], TYPES[0], 0.05, 0.05), (TYPES[0], TYPES[1], 1.5, 1e-300)] * 4)
def test_no_input_pushes_a_prediction_out_of_its_bounds(
    measured: list[tuple[Signature, Signature, float, float]],
) -> None:
    predictor = Predictor()
    for one, other, *both in measured:
        predictor.observe(one, other, *both)
        predictor.observe_one(other, one, both[0])
    for one, other, *_ in measured:
        assert all(is_sane(speed) for speed in predictor.pair(one, other))
        assert is_sane(predictor.beside(one, [other] * 9))


def test_speeds_far_above_that_alone_are_learned_as_they_are() -> None:
    predictor, pairs = Predictor(), all_pairs()
    for one, other in pairs[:80]:
        predictor.observe(one, other, true_speed(one, other) + 0.55, true_speed(other, one) + 0.55)
    assert max(true_speed(*pair) + 0.55 for pair in pairs[80:]) > 1.4
    found = [(predictor.pair(*pair)[0], true_speed(*pair) + 0.55) for pair in pairs[80:]]
    assert np.mean([abs(speed.mean - true) for speed, true in found]) < 0.04
    assert np.mean([speed.low <= true <= speed.high for speed, true in found]) > 0.8


@given(
    measured=st.lists(st.tuples(kinds, kinds, speeds, speeds), min_size=1, max_size=12),
    asked=st.lists(st.tuples(kinds, kinds), min_size=1, max_size=8),
    before=st.lists(st.tuples(kinds, kinds), max_size=4),
)
def test_a_prediction_does_not_depend_on_what_was_asked_before(
    measured: list[tuple[Signature, Signature, float, float]],
    asked: list[tuple[Signature, Signature]],
    before: list[tuple[Signature, Signature]],
) -> None:
    forward, backward = Predictor(), Predictor()
    for predictor in (forward, backward):
        for row in measured:
            predictor.observe(*row)
    for pair in before:
        backward.pair(*pair)
    found = {pair: backward.pair(*pair) for pair in reversed(asked)}
    for pair in asked:
        assert forward.pair(*pair) == found[pair]


@pytest.mark.slow
@given(st.lists(st.tuples(kinds, kinds, speeds, speeds), max_size=30, unique_by=lambda row: frozenset(row[:2])))
def test_the_order_of_measurements_does_not_matter(measured: list[tuple[Signature, Signature, float, float]]) -> None:
    forward, backward = Predictor(), Predictor()
    for row in measured:
        forward.observe(*row)
        backward.learn(row[0])
    for one, other, one_speed, other_speed in reversed(measured):
        backward.observe(other, one, other_speed, one_speed)
    for one, other in [(TYPES[0], TYPES[1]), (TYPES[7], TYPES[7]), *(row[:2] for row in measured)]:
        for first, second in zip(forward.pair(one, other), backward.pair(one, other), strict=True):
            assert first == pytest.approx(second, abs=1e-6)


def test_two_hundred_rows_appended_one_by_one_and_some_dropped_equal_a_fit_from_scratch() -> None:
    catalogue = Catalogue()
    for kind in TYPES:
        catalogue.number(kind)
    chance = np.random.default_rng(8)
    directions = chance.permutation([(i, j) for i in range(len(TYPES)) for j in range(len(TYPES))])
    posterior = Posterior(catalogue, SHARES, 300)
    values = chance.normal(size=260)
    noise = np.full(260, NOISE)
    noise[:40] /= 4
    for row in range(260):
        posterior.append(Pairs(*directions[row : row + 1].T), noise[row : row + 1])
    for _ in range(60):
        gone = int(chance.integers(posterior.rows))
        posterior.drop(gone)
        values, noise = np.delete(values, gone), np.delete(noise, gone)
    asked = Pairs(*directions[300:340].T)
    rows = posterior.pairs
    together = covariance(catalogue.likeness, rows, rows) + np.diag(noise + JITTER)
    shared = covariance(catalogue.likeness, asked, rows)
    explained = posterior.explained(asked)
    mean = explained @ (posterior.whitening @ values)
    assert mean == pytest.approx(shared @ np.linalg.solve(together, values), abs=1e-8)
    left = variance(catalogue.likeness, asked) - np.einsum("ij,ji->i", shared, np.linalg.solve(together, shared.T))
    assert posterior.variance(asked, explained) == pytest.approx(left, abs=1e-8)


def test_leaving_out_in_closed_form_is_what_leaving_out_gives() -> None:
    pairs = all_pairs()[:30]
    predictor = taught(pairs)
    seen, (_, _, whitened) = predictor._seen, predictor._seen.standardise()
    off = seen.posterior.without_pair(seen.opposites(), whitened)
    values = np.linalg.solve(seen.posterior.whitening, whitened)
    victims, partners = seen.posterior.pairs
    like = predictor._catalogue.likeness
    for one, other in pairs[:6]:
        numbers = predictor.learn(one), predictor.learn(other)
        inside = ((victims == numbers[0]) & (partners == numbers[1])) | (
            (victims == numbers[1]) & (partners == numbers[0])
        )
        block, rest = np.flatnonzero(inside), np.flatnonzero(~inside)
        outside, own = Pairs(victims[rest], partners[rest]), Pairs(victims[block], partners[block])
        noise = NOISE + JITTER
        weights = np.linalg.solve(
            covariance(like, outside, outside) + noise * np.eye(len(rest)), covariance(like, outside, own)
        )
        left = np.diag(
            covariance(like, own, own) + noise * np.eye(len(block)) - covariance(like, own, outside) @ weights
        )
        expected = np.abs(values[block] - weights.T @ values[rest]) / np.sqrt(left)
        assert off[block] == pytest.approx(expected, rel=1e-6)
        assert seen.posterior.without(block, whitened) == pytest.approx(expected, rel=1e-6)


def test_fitting_finds_which_parts_made_the_numbers() -> None:
    chance = np.random.default_rng(2)
    catalogue = Catalogue()
    types = TYPES[1::2]
    numbers = np.array([catalogue.number(kind) for kind in types])
    pairs = Pairs(np.repeat(numbers, len(types)), np.tile(numbers, len(types)))
    parts = dict.fromkeys(Shares.__dataclass_fields__, 0.0) | {"partner_family": 0.9, "types": 0.1}
    spread = covariance(catalogue.likeness, pairs, pairs, Shares(**parts)) + 1e-9 * np.eye(len(numbers) ** 2)
    tables = []
    for _ in range(4):
        roots = 0.75 + 0.08 * (np.linalg.cholesky(spread) @ chance.normal(size=len(spread)))
        speeds = np.clip(roots**2, 0.05, 1.2).tolist()
        rows = zip(pairs.victims.tolist(), pairs.partners.tolist(), speeds, strict=True)
        tables.append([Measured(types[victim], types[partner], speed) for victim, partner, speed in rows])
    fitted = fit_shares(tables, rounds=30)
    others = [fitted.victim_family, fitted.victim_batch, fitted.families_opposed, fitted.batches_alike]
    assert fitted.partner_family > 0.4
    assert max(others) < 0.1
    assert fitted.constant == SHARES.constant
    assert fitted.victim_profile == SHARES.victim_profile


def test_a_table_of_equal_speeds_tells_nothing_of_the_parts() -> None:
    pairs = [(one, other) for one in TYPES[:4] for other in TYPES[:4]]
    same = [Measured(one, other, 1.0) for one, other in pairs]
    informative = [Measured(one, other, true_speed(one, other)) for one, other in pairs]
    assert fit_shares([same, informative], rounds=3) == fit_shares([informative], rounds=3)
    assert fit_shares([same]).constant == SHARES.constant


SIGNATURES = st.builds(
    Signature,
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, 8, 32]),
    st.sampled_from([None, 0.01, 0.0101, 0.3]),
    st.none()
    | st.builds(Profile, utilisation=st.sampled_from([None, 0.2, 0.9]), memory_mib=st.sampled_from([None, 500])),
)


@given(st.lists(SIGNATURES, max_size=40))
def test_types_that_are_learned_at_once_are_those_learned_one_by_one(signatures: list[Signature]) -> None:
    at_once, one_by_one = Catalogue(), Catalogue()
    assert at_once.numbers(signatures) == [one_by_one.number(one) for one in signatures]
    assert at_once.types == one_by_one.types
    count = len(at_once.types)
    assert list(at_once.families) == list(one_by_one.families)
    for one, other in zip(at_once.likeness, one_by_one.likeness, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one[:count, :count] == other[:count, :count]).all()


def test_more_types_than_are_distinguished_can_be_learned_at_once() -> None:
    many = [Signature(f"w{number}", 16, 0.1) for number in range(MOST_TYPES + 10)]
    at_once, one_by_one = Catalogue(), Catalogue()
    assert at_once.numbers(many) == [one_by_one.number(one) for one in many]
