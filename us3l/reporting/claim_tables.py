"""The claims with their verdicts, the trials behind them, and accuracy over the length of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from us3l.paper.claims import LONG, LONGEST, SHORT, US_SIMCLR, WIDTHS, Settings, Trial, four_methods, queue_of
from us3l.paper.verdicts import Claim, RowComparison, SeedAccuracies, claims, judge, paper_figures
from us3l.paper.workspace import CellResult, Workspace
from us3l.reporting.tables import TextTable, with_deviation

NOT_RUN = "not run"
SETTING_WORDS = {"lr": "learning rate", "weight_decay": "weight decay", "teacher_memory": "teacher's memory"}


def claim_notes(place: Workspace, results: Sequence[CellResult]) -> list[TextTable]:
    """Return the tables of the page: the claims, the main table, and the tuning behind it."""
    accuracies = accuracies_of(results)
    return [claims_table(accuracies), main_table(accuracies), tuning_table(place)]


def accuracies_of(results: Sequence[CellResult]) -> SeedAccuracies:
    return {(result.cell.label, result.cell.width): result.values for result in results}


def claims_table(accuracies: SeedAccuracies) -> TextTable:
    """Return every claim, the paper's figures, ours, and the verdict."""
    lines = []
    for claim in claims():
        judged = judge(claim, accuracies)
        ours = "; ".join(filter(None, (our_figures(pair, accuracies) for pair in claim.comparisons))) or NOT_RUN
        verdict = f"**{judged.verdict}**" + (f": {judged.why}" if judged.why else "")
        lines.append([claim.text, paper_words(claim), ours, length_words(claim, accuracies), verdict])
    return TextTable(["claim", "the paper's figures, %", "ours, %", "steps and seeds", "verdict"], lines)


def paper_words(claim: Claim) -> str:
    """Return the paper's figures of the rows that a claim compares, where it has them."""
    words = []
    for comparison in claim.comparisons:
        if comparison.paper:
            name, *numbers = comparison.paper
            first, second = (paper_figures(name, number, comparison.widths) for number in numbers)
            words.append(both_words(list(first), list(first.values()), list(second.values())))
    return "; ".join(words)


def our_figures(comparison: RowComparison, accuracies: SeedAccuracies) -> str:
    """Return the means of both rows at the widths where both are measured."""
    pairs = [(width, fmean(a), fmean(b)) for width, a, b in comparison.pairs(accuracies) if a and b]
    if not pairs:
        return ""
    widths, *both = zip(*pairs, strict=True)
    return both_words(widths, *([f"{value:.1f}" for value in values] for values in both))


def both_words(widths: Sequence[float], first: Sequence[str], second: Sequence[str]) -> str:
    """Return the figures of two rows, and at which widths.

    >>> both_words([1, 0.5], ["69.0", "64.7"], ["66.5", "61.0"])
    '69.0 / 64.7 against 66.5 / 61.0 (1x, 0.5x)'
    """
    where = ", ".join(f"{width:g}x" for width in widths)
    return f"{' / '.join(first)} against {' / '.join(second)} ({where})"


def length_words(claim: Claim, accuracies: SeedAccuracies) -> str:
    """Return how long the runs are, and how many seeds there are at least."""
    if not claim.comparisons:
        return ""
    steps = claim.comparisons[0].first.steps
    pairs = [pair for comparison in claim.comparisons for pair in comparison.pairs(accuracies)]
    seeds = [min(len(first), len(second)) for _, first, second in pairs if first and second]
    return f"{steps:,}" + (f", {min(seeds)}" if seeds else "")


def main_table(accuracies: SeedAccuracies) -> TextTable:
    """Return the four methods at each length, mean and deviation over seeds on the test images."""
    lines = []
    for steps in (SHORT, LONG, LONGEST):
        for row in four_methods(steps):
            cells = [accuracies.get((row.name, width), ()) for width in WIDTHS]
            if steps != LONGEST or row.label != US_SIMCLR.label:  # which is not planned
                lines.append([row.label, f"{steps:,}", str(max(map(len, cells))), *map(mean_words, cells)])
    return TextTable(["test images, linear probe, %", "steps", "seeds", *(f"{width:g}x" for width in WIDTHS)], lines)


def mean_words(values: Sequence[float]) -> str:
    return with_deviation(fmean(values), stdev(values) if len(values) > 1 else None) if values else NOT_RUN


def tuning_table(place: Workspace) -> TextTable:
    """Return every trial that can be known by now, and its accuracy on the validation images."""
    lines = []
    for contender, tuning in queue_of(place).tunings.items():
        for trial in tuning.trials:
            score = score_words(trial, place) + (", the best" if tuning.best == trial.settings else "")
            lines.append([contender.label, str(trial.number), setting_words(trial.settings), score])
    return TextTable(["validation images, linear probe, %", "trial", "changed", "accuracy"], lines)


def setting_words(settings: Settings) -> str:
    return ", ".join(f"{SETTING_WORDS[name]} {value:.3g}" for name, value in settings.items()) or "nothing"


def score_words(trial: Trial, place: Workspace) -> str:
    """Return the accuracy at each width that it is judged at."""
    values = [place.seeds(cell) for cell in trial.cells]
    if not all(values):
        return NOT_RUN
    accuracies = [next(iter(figures.values())).value for figures in values]
    widths = trial.contender.judged_at
    return ", ".join(f"{value:.1f} at {width:g}x" for value, width in zip(accuracies, widths, strict=True))


def length_figure(results: Sequence[CellResult], path: Path) -> None:
    """Draw accuracy over the number of steps, a panel for each width, a line for each method."""
    from us3l.reporting import style as draw

    accuracies = accuracies_of(results)
    figure = draw.new_figure(12, 4.4, "Accuracy over the length of the training, on CIFAR-100")
    panels = figure.subplots(1, len(WIDTHS), sharey=True)
    for axes, width in zip(panels, WIDTHS, strict=True):
        axes.set_title(f"{width:g}x", fontsize=12, color=draw.INK)
        for number, rows in enumerate(zip(*map(four_methods, (SHORT, LONG, LONGEST)), strict=True)):
            points = [(row.steps, values) for row in rows if (values := accuracies.get((row.name, width)))]
            steps, means = [steps for steps, _ in points], [fmean(values) for _, values in points]
            errors = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
            axes.errorbar(steps, means, errors, label=rows[0].label, capsize=3, **draw.line_style(number))
        draw.plain(axes, "steps")
    panels[0].set_ylabel("linear probe (%)", fontsize=11, color=draw.INK)
    draw.legend(figure, panels[0], columns=4, size=10)
    draw.save(figure, path)
