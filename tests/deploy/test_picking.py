import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from us3l.deploy.picking import Candidate, best_within
from us3l.system.errors import UserError

FIGURES = ("latency_ms", "macs", "size_mb")
positive = st.floats(1e-3, 1e3, allow_nan=False)
candidate = st.builds(
    Candidate,
    st.sampled_from([0.25, 0.3, 0.5, 0.7, 1.0]),
    st.fixed_dictionaries(dict.fromkeys(FIGURES, positive)),  # noise at its worst: costs do not follow the width
    st.none() | st.floats(0, 100),
    st.sampled_from(["torch", "onnx"]),
)
tables = st.lists(candidate, min_size=1, max_size=12)


def worth(choice):
    return choice.candidate.accuracy if choice.by_accuracy else choice.candidate.width


@given(tables, st.dictionaries(st.sampled_from(FIGURES), positive, min_size=1), st.floats(1, 4), st.data())
def test_a_larger_budget_is_never_worse_and_no_budget_is_exceeded(table, budgets, factor, data):
    floor = data.draw(st.none() | st.floats(0, 100)) if any(c.accuracy is not None for c in table) else None
    small = best_within(table, budgets, floor)
    larger = best_within(table, {name: budget * factor for name, budget in budgets.items()}, floor)
    if small.fits:
        assert all(small.candidate.figures[name] <= budget for name, budget in budgets.items())
        assert all(margin >= 0 for margin in small.margins.values())
        assert floor is None or small.candidate.accuracy >= floor
        assert larger.fits
        assert worth(larger) >= worth(small)
    else:
        assert any(margin < 0 for margin in small.margins.values()) or small.candidate.accuracy < floor


@given(tables, st.data())
def test_the_budget_may_be_used_up_to_the_last_bit(table, data):
    chosen = data.draw(st.sampled_from(table))
    choice = best_within(table, dict(chosen.figures))
    assert choice.fits or chosen.accuracy is None
    assert all(choice.candidate.figures[name] <= chosen.figures[name] for name in FIGURES if choice.fits)


@given(tables, st.data())
def test_a_budget_that_is_missed_by_a_bit_is_missed(table, data):
    figures = data.draw(st.sampled_from(table)).figures
    name = data.draw(st.sampled_from(FIGURES))
    budgets = {name: math.nextafter(figures[name], 0)}
    choice = best_within(table, budgets)
    assert choice.fits == (choice.candidate.figures[name] <= budgets[name])


def rows(*figures):
    return [Candidate(width, {"latency_ms": ms}, accuracy) for width, ms, accuracy in figures]


def test_the_most_accurate_wins_even_if_narrower():
    choice = best_within(rows((1.0, 9, 60.0), (0.5, 5, 61.0), (0.25, 2, 50.0)), {"latency_ms": 10})
    assert (choice.candidate.width, choice.by_accuracy, choice.margins) == (0.5, True, {"latency_ms": 5})


def test_of_equally_accurate_ones_the_narrowest_wins():
    assert best_within(rows((1.0, 9, 60.0), (0.5, 5, 60.0)), {"latency_ms": 10}).candidate.width == 0.5


def test_without_accuracies_the_widest_wins():
    choice = best_within(rows((1.0, 9, None), (0.5, 5, None)), {"latency_ms": 10})
    assert (choice.candidate.width, choice.by_accuracy) == (1.0, False)


def test_what_was_not_evaluated_does_not_compete_but_is_told():
    table = rows((1.0, 9, None), (0.7, 7, None), (0.5, 5, 60.0), (0.25, 2, 50.0))
    assert best_within(table, {"latency_ms": 8}).candidate.width == 0.5
    assert best_within(table, {"latency_ms": 8}).unknown.width == 0.7
    assert best_within(table, {"latency_ms": 6}).unknown is None


def test_nothing_fits_then_the_nearest():
    choice = best_within(rows((1.0, 9, 60.0), (0.5, 5, 55.0)), {"latency_ms": 4})
    assert (choice.fits, choice.candidate.width, choice.margins) == (False, 0.5, {"latency_ms": -1})
    choice = best_within(rows((1.0, 9, 60.0), (0.5, 5, 55.0)), {"latency_ms": 8}, accuracy_at_least=58)
    assert (choice.fits, choice.candidate.width) == (False, 0.5)  # 5 % too inaccurate, not 12 % too slow


def test_the_faster_backend_of_one_width_wins():
    table = [Candidate(1.0, {"latency_ms": ms}, 50.0, backend) for ms, backend in ((5, "torch"), (3, "onnx"))]
    assert best_within(table, {"latency_ms": 10}).candidate.backend == "onnx"


@pytest.mark.parametrize(
    ("budgets", "floor", "message"),
    [
        ({}, None, "at least one budget"),
        ({"latency_ms": 0}, None, "must be above 0"),
        ({"latency_ms": float("nan")}, None, "must be above 0"),
        ({"macs": 5}, None, "no width has a figure"),
        ({"latency_ms": 5}, 50, "no width has an accuracy"),
    ],
)
def test_demands_that_make_no_sense(budgets, floor, message):
    with pytest.raises(UserError, match=message):
        best_within(rows((1.0, 9, None)), budgets, floor)
