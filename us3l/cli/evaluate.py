"""`us3l evaluate`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError


@dataclass(frozen=True)
class Evaluate:
    """Weighted kNN and a linear probe on frozen features, at every width asked for, beside the untrained network's.

    Results come as a table, as eval/NAME.json and as eval/NAME.png in the run's folder, NAME being the data's.

    examples:
      us3l evaluate runs/demo
      us3l evaluate runs/photos --data labelled-photos/ --widths 1 0.5 0.25
      us3l evaluate runs/photos --data labelled-photos/ --all-widths --no-floor
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    data: str | None = None
    """Labelled images (default: those that the run was trained on)."""
    widths: tuple[float, ...] | None = None
    """Widths to evaluate (default: the paper's nine, as far as the network has them)."""
    all_widths: bool = False
    """Evaluate every distinct width."""
    train_images: int | None = None
    """Learn the classifiers from only so many labelled images (default: all, or as many as the run itself used)."""
    floor: bool = True
    """Also evaluate the untrained network."""


def main(arguments: list[str]) -> int:
    return execute(parse(Evaluate, "evaluate", arguments))


def execute(command: Evaluate) -> int:
    from rich.console import Console

    from us3l.cli.data import image_size, load_images, load_model
    from us3l.evaluation.evaluate import NINE_WIDTHS, check_labels, evaluate, images_to_embed
    from us3l.evaluation.results import to_json
    from us3l.files import write_json
    from us3l.progress import Counting
    from us3l.report.figures import accuracy_figure
    from us3l.report.tables import results_table
    from us3l.training.run import Run

    console = Console()
    net = load_model(command.run)
    widths = net.widths[::-1] if command.all_widths else command.widths or net.among(NINE_WIDTHS)
    for width in widths:
        net.check(width)
    run = Run(command.run)
    data, limit = command.data, command.train_images
    if data is None:
        if not run.config_file.exists():
            raise UserError("say which labelled images to use: --data DATA")
        config = run.config()
        data, limit = config.data, limit or config.recipe.images
    size = image_size(net)
    train = load_images(console, data, "train", size, limit)
    test = load_images(console, data, "test", size)
    check_labels(train, test)
    with Counting(console, "embedding", images_to_embed(train, test, widths, command.floor)) as counting:
        results = evaluate(net, train, test, widths, size, command.floor, counting.more)

    console.print(results_table(results))
    name = train.name
    write_json(command.run / "eval" / f"{name}.json", {"data": data, "widths": to_json(results)})
    title = f"{train.name}: {len(train)} images to learn from, {len(test)} to test"
    accuracy_figure(results, command.run / "eval" / f"{name}.png", title)
    console.print(f"written: {command.run / 'eval' / name}.json and .png", highlight=False, soft_wrap=True)
    return 0
