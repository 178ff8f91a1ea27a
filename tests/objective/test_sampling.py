import itertools

import pytest

from us3l.objective.sampling import lower_bound, sample_widths
from us3l.objective.spec import Objective


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
    draws = [widths[2] for widths in schedule(4000)[3000:]]
    assert len(set(draws)) > 990
    assert abs(sum(draws) / len(draws) - 0.625) < 0.02


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


@pytest.mark.parametrize("min_width", [0.1, 0.2, 0.45, 0.6, 1 / 3, *(n / 100 for n in range(1, 100))])
def test_no_width_falls_below_the_narrowest(min_width):
    for step in range(40):
        assert min_width <= min(sample_widths(Objective(), min_width, step, 40, 0))
    assert lower_bound(Objective(), min_width, 39, 40) == min_width
