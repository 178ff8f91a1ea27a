"""`us3l evaluate`"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError
from us3l.evaluation.protocols import ProbeKind, Protocol, Training, finetuning, paper_probe

if TYPE_CHECKING:
    from rich.console import Console

    from us3l.data.batches import Images
    from us3l.evaluation.evaluate import Evaluation
    from us3l.evaluation.linear import Probe
    from us3l.run import Run
    from us3l.run.evaluations import EvaluationRecord
    from us3l.slimmable import Slimmable

PROBES: dict[ProbeKind, str] = {
    "imagenet": "ImageNet",
    "transfer": "data sets other than ImageNet",
    "vit": "vision transformers",
}


@dataclass(frozen=True)
class Evaluate:
    """What a network is worth at every width asked for, by labelled images.

    Protocol "fast" is weighted kNN and an exact linear probe on frozen features, beside the untrained network's;
    "paper" is the paper's linear probe, trained on random crops; "finetune" trains each width's network as a whole.
    Results come as a table, and in the run's folder as eval/NAME.json, .png and -costs.png, NAME being the data's
    (NAME-paper, NAME-finetune); the linear classifiers are in eval/NAME.probes.safetensors.

    DATA is digits, cifar10, cifar100, imagenet, flowers102, pets or dtd (see us3l download), a folder or parquet files.

    examples:
      us3l evaluate runs/demo
      us3l evaluate runs/photos --data labelled-photos/ --widths 1 0.5 0.25
      us3l evaluate runs/photos --data labelled-photos/ --widths all --no-floor
      us3l evaluate runs/photos --data flowers102 --label-share 0.01 0.1 --seeds 5
      us3l evaluate runs/photos --data cifar100 --protocol paper --widths 1 0.25
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    data: str | None = None
    """Labelled images (default: those that the run was trained on)."""
    data_root: Path | None = None
    """Where data sets that have a name lie (default: the environment's US3L_DATA, else ./data)."""
    widths: Literal["all"] | tuple[float, ...] | None = None
    """Widths to evaluate, or "all" distinct ones (default: the paper's nine, as far as the network has them)."""
    protocol: Protocol = "fast"
    """What learns from the labels."""
    probe: Literal["auto"] | ProbeKind = "auto"
    """Settings of the paper's probe: those for ImageNet, for all other data sets, or for ViTs (paper)."""
    train_images: int | None = None
    """Learn from only so many labelled images (default: all, or as many as the run itself used)."""
    test_images: int | None = None
    """Test on only so many images, equally many of each class (default: all)."""
    floor: bool = True
    """Also evaluate the untrained network (fast)."""
    label_share: tuple[float, ...] = ()
    """Also learn linear probes from these shares of every class's labels (fast)."""
    seeds: int = 1
    """Repeat what depends on chance with so many seeds, and give mean and deviation (label shares, paper, finetune)."""
    epochs: int | None = None
    """Epochs of training (paper, finetune)."""
    lr: float | None = None
    """Learning rate at its start (paper, finetune)."""
    batch_size: int | None = None
    """Images in a batch (paper, finetune)."""
    weight_decay: float | None = None
    """Weight decay (paper, finetune)."""
    stream: bool = False
    """Decode images anew whenever they are needed, also if they would fit into memory."""
    name: str | None = None
    """Name of the result, eval/NAME.json (default: the data's, followed by the protocol's unless that is fast)."""
    overwrite: bool = False
    """Replace an earlier result of that name. Without it, widths are added to one that has the same settings."""
    memory_gib: float = 4.0
    """Memory for decoded images; larger sets are read as with --stream."""


def main(arguments: list[str]) -> int:
    from us3l.cli import report

    command = parse(Evaluate, "evaluate", arguments)
    return execute(command) or report.renew(command.run)


def execute(command: Evaluate) -> int:
    from us3l.cli.data import load_model, open_images, tell_damaged
    from us3l.console import Console
    from us3l.data.preprocessing import Preprocessing
    from us3l.evaluation.evaluate import NINE_WIDTHS, check_labels, probe_kind
    from us3l.run import Run
    from us3l.run.evaluations import EvaluationRecord, settle
    from us3l.run.identity import identify

    check(command)
    console = Console()
    net = load_model(command.run)
    widths = net.widths[::-1] if command.widths == "all" else command.widths or net.among(NINE_WIDTHS)
    for width in widths:
        net.check(width)
    run = Run(command.run)
    data, limit = command.data, command.train_images
    if data is None:
        if not run.config_file.exists():
            raise UserError("say which labelled images to use: --data DATA")
        data, limit = str(run.settings["data"]), limit or run.settings["recipe"]["images"]
    preprocessing = Preprocessing.of(net)
    size = preprocessing.size
    where = (command.data_root, command.stream, command.memory_gib)
    train = open_images(console, data, "train", preprocessing, limit, *where)
    test = open_images(console, data, "test", preprocessing, command.test_images, *where)
    check_labels(train, test)
    kind = probe_kind(net, train) if command.probe == "auto" else command.probe
    training = settings(command, size, kind)
    if command.protocol == "paper":
        console.print(f"the paper's probe for {PROBES[kind]}: {training}", highlight=False, soft_wrap=True)
    identity = identify(data, train, test)
    record = EvaluationRecord(
        name=train.name if command.protocol == "fast" else f"{train.name}-{command.protocol}",
        widths=[],
        data=data,
        identity=identity,
        protocol=command.protocol,
        probe=kind if command.protocol == "paper" else None,
        training=asdict(training) if training else None,
        size=size,
        train_images=identity.train_images,
        test_images=identity.test_images,
        seeds=command.seeds,
        classes=train.classes,
    )
    settle(run, record, command.name, command.overwrite)  # what speaks against it is said before the work
    found = evaluate(command, console, net, train, test, widths, size, training)
    record = replace(record, widths=found.results, scores=found.scores, few_labels=found.few_labels)
    write(command, console, run, settle(run, record, command.name, command.overwrite), found.probes)
    tell_damaged(console, data, found.damaged)
    return 0


def check(command: Evaluate) -> None:
    if command.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {command.seeds}")
    trained = {"epochs", "lr", "batch_size", "weight_decay"}
    given = [name for name in trained if getattr(command, name) is not None]
    if given and command.protocol == "fast":
        option = sorted(given)[0].replace("_", "-")
        raise UserError(f"--{option} has no meaning for the fast protocol, which trains nothing by steps: --protocol")
    if command.probe != "auto" and command.protocol != "paper":
        raise UserError("--probe chooses among the paper's probes: --protocol paper")
    if command.label_share and command.protocol != "fast":
        raise UserError("--label-share goes with the fast protocol; for others give fewer images: --train-images")


def settings(command: Evaluate, size: int, kind: ProbeKind) -> Training | None:
    if command.protocol == "fast":
        return None
    chosen = paper_probe(kind, size, command.batch_size) if command.protocol == "paper" else finetuning(size)
    names = ("epochs", "lr", "batch_size", "weight_decay")
    return replace(chosen, **{name: value for name in names if (value := getattr(command, name)) is not None})


def evaluate(
    command: Evaluate,
    console: Console,
    net: Slimmable,
    train: Images,
    test: Images,
    widths: list[float] | tuple[float, ...],
    size: int,
    training: Training | None,
) -> Evaluation:
    from us3l.evaluation import evaluate as by
    from us3l.progress import Counting

    if training is None:
        with Counting(console, "embedding", by.images_to_embed(train, test, widths, command.floor)) as counting:
            shares = command.label_share
            return by.evaluate(net, train, test, widths, size, command.floor, shares, command.seeds, counting.more)
    whole = command.protocol == "finetune"
    total = by.images_to_train(train, test, widths, training, command.seeds, whole)
    with Counting(console, "training classifiers", total) as counting:
        job = by.evaluate_finetuned if whole else by.evaluate_paper
        return job(net, train, test, widths, size, training, command.seeds, counting.more)


def write(
    command: Evaluate, console: Console, run: Run, record: EvaluationRecord, probes: Mapping[float, Probe]
) -> None:
    """Files first, so that nothing is lost with the screen."""
    from us3l.report.figures import accuracy_figure, cost_figure, lines_of
    from us3l.report.tables import few_labels_table, results_table, uncertainty
    from us3l.run.evaluations import write_evaluation
    from us3l.run.probes import keep_probes

    if probes:
        linear = {width: (probe.weight, probe.bias) for width, probe in probes.items()}
        keep_probes(run, record, linear, command.overwrite)
    base = write_evaluation(run, record).with_suffix("")
    title = f"{record.name}: {record.train_images:,} images to learn from, {record.test_images:,} to test"
    accuracy_figure(record.widths, f"{base}.png", title)
    cost_figure(lines_of(record.widths), f"{base}-costs.png", title)
    console.print(results_table(record.widths))
    if record.few_labels:
        console.print("linear probe from a share of the labels, %", highlight=False)
        console.print(few_labels_table(record.few_labels))
    console.print(uncertainty(record.scores, record.test_images or 0), highlight=False, soft_wrap=True)
    console.print(f"written: {base}.json, .png and -costs.png", highlight=False, soft_wrap=True)
