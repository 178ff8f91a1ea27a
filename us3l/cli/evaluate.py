"""`us3l evaluate`"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from us3l.cli.parse import RunArgument, parse
from us3l.evaluation.settings import EvaluationSettings
from us3l.run.folder import Product

if TYPE_CHECKING:
    from us3l.cli.screen import CommandScreen
    from us3l.run import Run
    from us3l.run.evaluations import EvaluationRecord


@dataclass(frozen=True)
class Evaluate:
    """Accuracy at each width, measured on labelled images; quality without labels on any.

    Protocol "fast" is weighted kNN and an exact linear probe on frozen features, beside the untrained network's;
    "paper" is the paper's linear probe, trained on random crops; "finetune" trains each width's network and keeps it.
    Of images without labels, "fast" measures RankMe, LiDAR and how far each width agrees with the full one.
    Results come as a table, and in the run's folder as eval/NAME.json, .png and -costs.png, NAME being the data's
    (NAME-paper, NAME-finetune); the linear classifiers are in eval/NAME.probes.safetensors.

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
    """Labelled images (default: those that the run was trained on)."""
    data_root: Path | None = None
    """Where data sets that have a name lie (default: the environment's US3L_DATA, else ./data)."""
    train_images: int | None = None
    """Learn from only this many labelled images (default: all, or the number that the run itself used)."""
    test_images: int | None = None
    """Test on only this many images, the same number of each class (default: all)."""
    stream: bool = False
    """Decode images whenever they are needed, even if they would fit into memory."""
    memory_gib: float = 4.0
    """Memory for decoded images; larger sets are read as with --stream."""
    weights: Product | None = None
    """Whose: "teacher" for those of the run's momentum teacher, "student" for the trained network's. What is not the
    run's model has a folder of its own, RUN/teacher, with its results; if need be it is made of the last checkpoint."""
    name: str | None = None
    """Name of the result, eval/NAME.json (default: the data's, followed by the protocol's unless that is fast)."""
    overwrite: bool = False
    """Replace an earlier result of that name. Without it, widths are added to one that has the same settings."""
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)


def main(arguments: list[str]) -> None:
    command = parse(Evaluate, "evaluate", arguments)
    from us3l.cli import report
    from us3l.cli.screen import CommandScreen
    from us3l.run import Run
    from us3l.verbs.measuring import evaluate
    from us3l.verbs.pretraining import with_weights

    screen = CommandScreen()
    given = {name: value for name, value in vars(command).items() if name not in ("run", "settings", "weights")}
    run = with_weights(Run(command.run), command.weights, screen)
    record = evaluate(run, **given, **vars(command.settings), progress=screen)
    show(screen, run, record)
    report.renew(command.run)


def show(screen: CommandScreen, run: Run, record: EvaluationRecord) -> None:
    from us3l.reporting.figures import evaluation_figures
    from us3l.reporting.tables import WITHOUT_LABELS, few_labels_table, results_table, uncertainty

    base = evaluation_figures(run, record)
    screen.console.print(results_table(record.widths, scores=record.scores))
    if record.few_labels:
        screen.console.print("linear probe from a share of the labels, %")
        screen.console.print(few_labels_table(record.few_labels))
    screen.say(uncertainty(record.scores, record.test_images or 0) if record.metric else WITHOUT_LABELS)
    screen.say(f"written: {base}.json" + (", .png and -costs.png" if record.metric else ""))
