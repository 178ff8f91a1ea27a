import itertools

import pytest

from us3l.objective.sampling import lower_bound, sample_widths
from us3l.objective.spec import Objective
from us3l.system.errors import UserError


def schedule(steps, objective=None, seed=0):
    return [sample_widths(objective or Objective(), 0.25, step, steps, seed) for step in range(steps)]


@pytest.mark.parametrize("steps", [4, 8, 400, 1172])
def test_forwards_are_two_and_a_half_per_step(steps):
    assert sum(map(len, schedule(steps))) == 2.5 * steps


def test_quarters_of_a_run():
    for quarter, lowest in enumerate([1.0, 0.75, 0.5, 0.25]):
        for widths in schedule(80)[20 * quarter : 20 * (quarter + 1)]:
            if quarter == 0:
                assert widths == [1.0]
            else:
                assert widths[:2] == [1.0, lowest]
                assert lowest <= widths[2] <= 1.0
                assert len(widths) == 3


@pytest.mark.parametrize("steps", [*range(1, 40), 399, 401, 402, 403])
def test_any_number_of_steps_behaves(steps):
    lowest = [min(widths) for widths in schedule(steps)]
    assert lowest[0] == 1.0
    assert all(0.25 <= width <= 1.0 for widths in schedule(steps) for width in widths)
    bounds = [lower_bound(Objective(), 0.25, step, steps) for step in range(steps)]
    assert bounds == sorted(bounds, reverse=True)
    if steps >= 4:
        assert set(bounds) == {1.0, 0.75, 0.5, 0.25}
        lengths = [len(list(group)) for _, group in itertools.groupby(bounds)]
        assert max(lengths) - min(lengths) <= 1


def test_draws_depend_on_seed_and_step_only():
    assert schedule(40, seed=1) == schedule(40, seed=1)
    assert schedule(40, seed=1) != schedule(40, seed=2)
    draws = [float(widths[2]) for widths in schedule(4000)[3000:]]
    assert len(set(draws)) > 990
    assert abs(sum(draws) / len(draws) - 0.625) < 0.02


@pytest.mark.parametrize(("samples", "sandwich"), [(1, True), (2, True), (3, True), (4, True), (6, True), (3, False)])
def test_stratified_widths_lie_apart(samples, sandwich):
    objective = Objective(samples=samples, sandwich=sandwich, stratified=True, max_first=False, gradual=False)
    for widths in schedule(200, objective):
        assert len(widths) == samples
        if sandwich:
            assert widths[:2] == [1.0, 0.25][:samples]
        drawn = sorted(widths[2:] if sandwich else widths)
        places = [(float(width) - 0.25) / 0.75 * len(drawn) for width in drawn]
        assert [int(min(place, len(drawn) - 1e-9)) for place in places] == list(range(len(drawn)))


def test_parts_of_dynamic_sampling():
    always = schedule(80, Objective(max_first=False, gradual=False))
    assert all(widths[:2] == [1.0, 0.25] and len(widths) == 3 for widths in always)
    gradual = schedule(90, Objective(max_first=False))
    assert [min(w) for w in (gradual[0], gradual[30], gradual[60])] == [0.75, 0.5, 0.25]
    max_first = schedule(80, Objective(gradual=False))
    assert [min(w) for w in (max_first[0], max_first[20])] == [1.0, 0.25]
    four = schedule(80, Objective(samples=4))
    assert sum(map(len, four)) == 20 + 60 * 4
    assert all(widths == [1.0] for widths in schedule(80, Objective(samples=1)))
    free = schedule(80, Objective(sandwich=False))[-1]
    assert len(free) == 3
    assert free == sorted(free, reverse=True)
    assert free[0] < 1


def papers_bound(max_first, min_width, step, steps):
    """Equal periods, in whole numbers."""
    reached = 4 * step // steps if max_first else 3 * step // steps + 1
    return min_width if reached == 3 else 1 - (1 - min_width) * reached / 3


@pytest.mark.parametrize("max_first", [True, False])
def test_the_papers_periods_to_the_bit(max_first):
    objective = Objective(max_first=max_first)
    for steps in (1, 3, 7, 12, 97, 401):
        for step in range(steps):
            assert lower_bound(objective, 0.2, step, steps) == papers_bound(max_first, 0.2, step, steps)
            assert (sample_widths(objective, 0.2, step, steps, 0) == [1.0]) == (max_first and 4 * step < steps)


def test_when_sub_networks_begin():
    assert [len(widths) for widths in schedule(100, Objective(full_alone=0.1))] == [1] * 10 + [3] * 90
    equal = [lower_bound(Objective(full_alone=0.4), 0.25, step, 100) for step in range(100)]
    assert equal == [1.0] * 40 + [0.75] * 20 + [0.5] * 20 + [0.25] * 20
    assert schedule(10, Objective(full_alone=0.0, gradual=False))[0][:2] == [1.0, 0.25]


@pytest.mark.parametrize("min_width", [0.1, 0.2, 0.45, 0.6, 1 / 3, *(n / 100 for n in range(1, 100))])
def test_no_width_falls_below_the_narrowest(min_width):
    for step in range(40):
        assert min_width <= min(sample_widths(Objective(), min_width, step, 40, 0))
    assert lower_bound(Objective(), min_width, 39, 40) == min_width


def test_mixed_subnetworks_stand_between_the_full_network_and_the_narrowest():
    objective = Objective(mixed=0.5, mixed_depth=0.5, samples=4)
    drawn = [sample_widths(objective, 0.25, step, 400, 0, 3, (1, 2, 5)) for step in range(400)]
    assert drawn == [sample_widths(objective, 0.25, step, 400, 0, 3, (1, 2, 5)) for step in range(400)]
    assert all(widths == [1.0] for widths in drawn[:100])
    for step, widths in enumerate(drawn[100:], start=100):
        assert (widths[0], widths[-1], len(widths)) == (1.0, lower_bound(objective, 0.25, step, 400), 4)
    subnets = [width for widths in drawn for width in widths if not width.plain]
    assert 0.45 < len(subnets) / 600 < 0.55
    assert {subnet.depths for subnet in subnets} == {(1, few, many) for few in (1, 2) for many in (3, 4, 5)}
    assert 0.25 <= min(min(subnet.widths) for subnet in subnets) < 0.27
    assert all(subnet.depths is None for subnet in some_mixed(Objective(mixed=1.0)))


def some_mixed(objective):
    return [sample_widths(objective, 0.25, step, 40, 0, 4)[1] for step in range(30, 40)]


def test_plain_draws_are_the_same_with_and_without_mixed_ones():
    plain, mixed = schedule(400), schedule(400, Objective(mixed=0.3))
    same = [a[2] == b[1] for a, b in zip(plain[100:], mixed[100:], strict=True)]
    assert 0.6 < sum(same) / 300 < 0.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixed": 1.5}, "mixed=1.5"),
        ({"mixed": 0.5, "sandwich": False}, "needs sandwich"),
        ({"mixed": 0.5, "samples": 2}, "three or more samples"),
        ({"mixed_depth": 0.5}, "it needs mixed"),
    ],
)
def test_mixed_settings_that_do_not_go_together(settings, message):
    with pytest.raises(UserError, match=message):
        Objective(**settings)
