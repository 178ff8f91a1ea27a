"""Verdicts follow the rules of docs/lab/protocol.md."""

from dataclasses import replace

import pytest

from us3l.paper import claims
from us3l.paper.cases import Case
from us3l.paper.claims import ClaimRow, stages
from us3l.paper.verdicts import Claim, RowComparison, judge, order_of
from us3l.paper.verdicts import claims as all_claims

OURS, THEIRS = (ClaimRow(label, 10, Case(label, "cifar-resnet18"), widths=(1.0, 0.5)) for label in ("ours", "theirs"))
CLAIM = Claim("ours is above", (RowComparison(OURS, THEIRS, widths=(1.0, 0.5)),))


def accuracies(ours, theirs):
    """At 1x and 0.5x, one for each seed."""
    measured = {}
    for row, values in ((OURS, ours), (THEIRS, theirs)):
        measured |= {(row.name, width): seeds for width, seeds in zip(row.widths, values, strict=False)}
    return measured


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ([20.0, 20.1, 20.2], [19.0, 19.1, 19.2], "above"),
        ([19.0, 19.1, 19.2], [20.0, 20.1, 20.2], "below"),
        ([20.0, 20.0, 20.0], [19.8, 19.8, 19.8], "level"),  # too small a difference, however steady
        ([20.0, 22.0, 21.0], [19.0, 19.5, 20.0], "level"),  # 1.5 points with a pooled deviation of 0.8
        ([20.0], [18.7], "unclear"),
        ([20.0], [18.5], "above"),
        ([20.0, 20.1, 20.2], [19.0], "unclear"),
    ],
)
def test_a_difference_counts_if_it_is_over_two_pooled_deviations(first, second, order):
    assert order_of(first, second) == order


def test_a_claim_holds_at_every_width_or_not_at_all():
    high, low = [20.0, 20.1, 20.2], [18.0, 18.1, 18.2]
    assert judge(CLAIM, accuracies([high, high], [low, low])).verdict == "holds"
    for second in (high, low):  # level and below
        judged = judge(CLAIM, accuracies([high, second], [low, high]))
        assert judged.verdict == "does not hold here"
        assert judged.why == f"ours is {'level' if second is high else 'below'} at 0.5x"
    without_loss = replace(CLAIM, comparisons=(replace(CLAIM.comparisons[0], relation="not below"),))
    assert judge(without_loss, accuracies([high, low], [low, low])).verdict == "holds"
    assert judge(without_loss, accuracies([low, low], [high, low])).verdict == "does not hold here"


def test_what_was_not_measured_is_never_decided():
    nothing = judge(CLAIM, {})
    assert (nothing.verdict, nothing.why) == ("undecided", "not run")
    part = judge(CLAIM, accuracies([[20.0], [20.0]], [[18.0]]))
    assert (part.verdict, part.why) == ("undecided", "not run: theirs")
    unclear = judge(CLAIM, accuracies([[20.0], [20.0]], [[18.0], [19.9]]))
    assert (unclear.verdict, unclear.why) == ("undecided", "too few seeds for the difference: ours at 0.5x")
    assert judge(Claim("a GPU", needs="a GPU"), {}).verdict == "undecided"


def test_the_queue_runs_every_row_that_a_claim_needs():
    planned = {(row.name, width) for stage in stages() for row in stage.rows for width in row.widths}
    for claim in all_claims():
        for one in claim.comparisons:
            for width in one.widths:
                assert (one.first.name, width) in planned, claim.text
                assert (one.second.name, one.second_width or width) in planned, claim.text
    assert claims.SEEDS == (1, 2, 3)
