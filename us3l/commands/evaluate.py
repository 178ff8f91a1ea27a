"""`us3l evaluate`"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from us3l.commands.parse import RunArgument, parse
from us3l.evaluation.settings import EvaluationSettings
from us3l.run.folder import Product

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.run import Run
    from us3l.run.evaluations import EvaluationRecord


@dataclass(frozen=True)
class Evaluate:
    """Measure accuracy at each width on labelled images, or quality on images without labels.

    The protocol "fast" is weighted kNN and an exact linear probe on frozen features, compared with the untrained
    network; "paper" is the paper's linear probe, trained on random crops; "finetune" trains each width's network and
    keeps it; "classifier" tests the one that a run learned with labels. On images without labels, "fast" measures
    RankMe, LiDAR and how far each width agrees with the full one.

    The results are printed as a table and written to the run's folder as eval/NAME.json, .png and -costs.png. NAME is
    the name of the data (NAME-paper, NAME-finetune for the other protocols). The linear classifiers are in
    eval/NAME.probes.safetensors.

    DATA is digits, cifar10, cifar100, imagenet, flowers102, pets or dtd (see us3l download), a folder or parquet files.

    examples:
      us3l evaluate runs/demo
      us3l evaluate runs/photos --data labelled-photos/ --widths 1 0.5 0.25
      us3l evaluate runs/photos --data labelled-photos/ --widths all --no-floor
      us3l evaluate runs/photos --data flowers102 --label-share 0.01 0.1 --seeds 5
      us3l evaluate runs/photos --data cifar100 --protocol paper --widths 1 0.25
      us3l evaluate runs/photos --data labelled-photos/ --weights teacher
      us3l evaluate runs/photos --data more-photos/ --widths 1 0.25
    """

    run: RunArgument
    """A run's folder, or a model's."""
    data: str | None = None
    """Images to evaluate on (default: those that the run was trained on)."""
    data_root: Path | None = None
    """Folder that holds named data sets (default: the environment variable US3L_DATA, else ./data)."""
    train_images: int | None = None
    """Learn from only this many labelled images (default: all, or the number that the run itself used)."""
    test_images: int | None = None
    """Test on only this many images, the same number of each class (default: all)."""
    stream: bool = False
    """Decode images as they are needed, even if they would fit into memory."""
    memory_gib: float = 4.0
    """Memory for decoded images; larger sets are read as with --stream."""
    weights: Product | None = None
    """Which weights to evaluate: "student" for the trained network's, "teacher" for those of its momentum teacher
    (default: those of the run's model). The others have a folder of their own, such as RUN/teacher, with
    their results; if need be it is made from the last checkpoint."""
    retrieval: bool = False
    """Also measure how well queries of each width find images of their class in a gallery of each other width."""
    name: str | None = None
    """Name of the result, eval/NAME.json (default: the data's name, followed by the protocol unless it is fast)."""
    overwrite: bool = False
    """Replace an earlier result of that name. Otherwise widths are added to it, if the settings are the same."""
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)


def main(arguments: list[str]) -> None:
    command = parse(Evaluate, "evaluate", arguments)
    from us3l.commands import report
    from us3l.commands.screen import CommandScreen
    from us3l.run import Run
    from us3l.verbs.measuring import evaluate
    from us3l.verbs.pretraining import with_weights

    screen = CommandScreen()
    given = {name: value for name, value in vars(command).items() if name not in ("run", "settings", "weights")}
    run = with_weights(Run(command.run), command.weights, screen)
    record = evaluate(run, **given, **vars(command.settings), progress=screen)
    show(screen, run, record)
    if command.retrieval:
        show_retrieval(screen, run, record.name)
    report.renew(command.run)


def show(screen: CommandScreen, run: Run, record: EvaluationRecord) -> None:
    from us3l.reporting.accuracy_figures import evaluation_figures
    from us3l.reporting.tables import WITHOUT_LABELS, few_labels_table, results_table, uncertainty

    base = evaluation_figures(run, record)
    screen.console.print(results_table(record.widths, scores=record.scores))
    if record.few_labels:
        screen.console.print("linear probe from a share of the labels, %")
        screen.console.print(few_labels_table(record.few_labels))
    screen.say(uncertainty(record.scores, record.test_images or 0) if record.metric else WITHOUT_LABELS)
    screen.say(f"written: {base}.json" + (", .png and -costs.png" if record.metric else ""))


def show_retrieval(screen: CommandScreen, run: Run, name: str) -> None:
    from us3l.reporting.tables import retrieval_table
    from us3l.run.retrievals import read_retrievals, retrieval_file

    for metric, title in (("recall", "recall@1"), ("knn", "kNN")):
        screen.say(f"{title} in the space that all widths share, %: queries in rows, galleries in columns")
        screen.console.print(retrieval_table(read_retrievals(run, name), metric))
    screen.say(f"written: {retrieval_file(run, name)}")
