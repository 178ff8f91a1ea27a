"""The claims one by one: the rows that test each, and what the figures say about it.

The rules are those of docs/lab/protocol.md, which was written before the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Literal

from us3l.paper.cases import table
from us3l.paper.cells import by_width
from us3l.paper.claims import (
    BETWEEN,
    GUIDELINE_CASES,
    LONG,
    PLUS,
    SHORT,
    US3L,
    US_SIMCLR,
    WIDTHS,
    ClaimRow,
    alone_row,
    backbone_rows,
    between_rows,
    group_rows,
    guideline_rows,
    ingredient_rows,
    large_image_rows,
    method_row,
    sampling_rows,
    simsiam_rows,
)

Order = Literal["above", "below", "level", "unclear"]
Relation = Literal["above", "not below", "not above"]
Verdict = Literal["holds", "does not hold here", "undecided"]
SeedAccuracies = Mapping[tuple[str, float], Sequence[float]]
"""By the name of a row and the width, one for each seed."""
FITTING: dict[Relation, tuple[Order, ...]] = {
    "above": ("above",),
    "not below": ("above", "level"),
    "not above": ("below", "level"),
}
ENOUGH_SEEDS = 3
USUAL_DEVIATION = 0.7  # points, where there are too few seeds to know: the largest of our earlier tables
LEAST = 0.3  # points that count as a difference


@dataclass(frozen=True)
class RowComparison:
    """Two rows that a claim compares."""

    first: ClaimRow
    second: ClaimRow
    relation: Relation = "above"
    widths: tuple[float, ...] = WIDTHS
    paper: tuple[str, int, int] | None = None
    """A table of the paper, and the numbers of the same two rows in it."""
    second_width: float | None = None
    """Where the second row is looked at, if not at the same widths."""

    def pairs(self, accuracies: SeedAccuracies) -> Iterator[tuple[float, Sequence[float], Sequence[float]]]:
        """Yield each width, and the accuracies of both rows there; none where a row is not measured."""
        for width in self.widths:
            beside = self.second_width or width
            yield width, accuracies.get((self.first.name, width), ()), accuracies.get((self.second.name, beside), ())


@dataclass(frozen=True)
class Claim:
    """Something that the paper or we say, and how it is tested."""

    text: str
    comparisons: tuple[RowComparison, ...] = ()
    needs: str = ""
    """What would decide it, where nothing that we can run does."""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict
    why: str


def order_of(first: Sequence[float], second: Sequence[float]) -> Order:
    """Return where the first of two methods stands to the second, by their accuracies over seeds.

    >>> order_of([20.0, 20.2, 20.4], [19.0, 19.1, 19.2]), order_of([20.0], [19.0])
    ('above', 'unclear')
    """
    difference = fmean(first) - fmean(second)
    enough = min(len(first), len(second)) >= ENOUGH_SEEDS
    pooled = math.sqrt((variance(first) + variance(second)) / 2) if enough else USUAL_DEVIATION
    if abs(difference) > max(2 * pooled, LEAST):
        return "above" if difference > 0 else "below"
    return "level" if enough else "unclear"


def judge(claim: Claim, accuracies: SeedAccuracies) -> Judged:
    """Return the verdict about a claim."""
    if claim.needs:
        return Judged(claim, "undecided", claim.needs)
    missing: dict[str, None] = {}
    wrong, unclear, measured = [], [], False
    for comparison in claim.comparisons:
        for width, first, second in comparison.pairs(accuracies):
            missing |= {comparison.first.label: None} if not first else {}
            missing |= {comparison.second.label: None} if not second else {}
            if not (first and second):
                continue
            measured = True
            order = order_of(first, second)
            if order == "unclear":
                unclear.append(f"{comparison.first.label} at {width:g}x")
            elif order not in FITTING[comparison.relation]:
                wrong.append(f"{comparison.first.label} is {order} at {width:g}x")
    if wrong:
        return Judged(claim, "does not hold here", "; ".join(wrong))
    if missing:
        return Judged(claim, "undecided", "not run: " + "; ".join(missing) if measured else "not run")
    if unclear:
        return Judged(claim, "undecided", "too few seeds for the difference: " + "; ".join(unclear))
    return Judged(claim, "holds", "")


def paper_figures(name: str, number: int, widths: Sequence[float]) -> dict[float, str]:
    """Return the paper's accuracies of a row, at those of some widths that it has.

    >>> paper_figures("main-cifar100", 9, (1.0, 0.75, 0.5, 0.25))
    {1.0: '69.0', 0.5: '64.7', 0.25: '60.4'}
    """
    accuracies = by_width(table(name)[number - 1])
    return {width: accuracies[width] for width in widths if width in accuracies}


def between() -> Iterator[RowComparison]:
    """Yield the widths of US3L that no table has, each beside the next narrower one that it has."""
    row, measured = between_rows()[1], method_row(US3L, LONG)
    for width in BETWEEN:
        narrower = max(tabled for tabled in WIDTHS if tabled < width)
        yield RowComparison(row, measured, "not below", (width,), second_width=narrower)


def claims() -> list[Claim]:
    """Return all claims, the paper's first."""
    simsiam, s_net, distilled = simsiam_rows()
    cases = dict(zip(GUIDELINE_CASES, guideline_rows(), strict=True))
    four, three, gradual, first, both = sampling_rows()
    alone_grouped, grouped = group_rows()
    vit_alone, vit, _, mobile_alone, mobile, _ = backbone_rows()
    large_alone, large_us3l, large_plus = large_image_rows()
    us3l, plus, us_simclr = (method_row(who, LONG) for who in (US3L, PLUS, US_SIMCLR))

    def losses(better: int, worse: int) -> RowComparison:
        return RowComparison(cases[better], cases[worse], paper=("app-ablation", better, worse))

    def at_length(steps: int) -> list[Claim]:
        ours, full, plain = (replace(row, steps=steps) for row in (us3l, plus, us_simclr))
        alone, length = alone_row(steps), f"after {steps:,} steps"
        return [
            Claim(
                f"US3L is above networks trained alone, {length}",
                (RowComparison(ours, alone, paper=("main-cifar100", 9, 1)),),
            ),
            Claim(f"US3L is above US+SimCLR, {length}", (RowComparison(ours, plain, paper=("main-cifar100", 9, 7)),)),
            Claim(
                f"Ours: US3L-plus is above networks trained alone, US+SimCLR and US3L, {length}",
                tuple(RowComparison(full, rival) for rival in (alone, plain, ours)),
            ),
        ]

    return [
        Claim(
            "Plain self-supervised learning fails in a slimmable network",
            tuple(
                RowComparison(simsiam, row, paper=("motivation", 4, number))
                for row, number in ((s_net, 5), (distilled, 6))
            ),
        ),
        Claim(
            "At least one of the three guidelines is needed",
            tuple(losses(kept, none) for kept in (7, 19) for none in (1, 3)),
        ),
        Claim("The momentum teacher helps", (losses(22, 19),)),
        Claim("A head of the sub-networks' own helps", (losses(23, 22),)),
        Claim(
            "Dynamic sampling saves 4T to 2.5T without loss",
            (RowComparison(both, four, "not below", paper=("app-ablation-sample", 5, 1)),),
        ),
        Claim(
            "Gradual reduction helps",
            (
                RowComparison(gradual, three, paper=("app-ablation-sample", 3, 2)),
                RowComparison(both, first, paper=("app-ablation-sample", 5, 4)),
            ),
        ),
        Claim(
            "Group regularisation helps the full width, and only in slimmable networks",
            (
                RowComparison(grouped, three, widths=(1.0,), paper=("app-ablation-reg-for-byol", 6, 5)),
                RowComparison(
                    alone_grouped, alone_row(LONG), "not above", (1.0,), paper=("app-ablation-reg-for-byol", 4, 3)
                ),
            ),
        ),
        *at_length(SHORT)[:2],
        *at_length(LONG)[:2],
        Claim(
            "A cause to test: US3L with four widths at every step is above US+SimCLR and networks trained alone",
            tuple(RowComparison(four, rival) for rival in (us_simclr, alone_row(LONG))),
        ),
        Claim("A width between two of these is not below the narrower one", tuple(between())),
        Claim(
            "ViT-Tiny: US3L is above MoCo v3 alone",
            (RowComparison(vit, vit_alone, paper=("main-vit-cifar10", 3, 1)),),
        ),
        Claim(
            "MobileNetV2: US3L is above BYOL alone",
            (RowComparison(mobile, mobile_alone, paper=("main-cifar100", 23, 18)),),
        ),
        Claim(
            "Networks pre-trained on ImageNet carry over to other data and to detection",
            needs="needs ImageNet and a GPU: about two days of one A100 for each ResNet-50 run of 100 epochs, counted "
            "from its multiply-accumulates at 30 % of the peak",
        ),
        at_length(SHORT)[2],
        at_length(LONG)[2],
        *(
            Claim(
                f"Ours: US3L-plus is above itself with {row.label}",
                (RowComparison(replace(plus, steps=SHORT), row),),
            )
            for row in ingredient_rows()
        ),
        Claim(
            "Ours: the order is the same at 32 pixels",
            (
                RowComparison(large_plus, large_us3l),
                RowComparison(large_plus, large_alone, widths=(1.0, 0.25)),
            ),
        ),
    ]
