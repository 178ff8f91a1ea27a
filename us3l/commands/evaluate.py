"""`us3l evaluate`: how good the widths are."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from us3l.commands.command import ModelCommand, command
from us3l.evaluation.protocols import EvaluationSettings
from us3l.setting_types import PYTHON_ONLY, Data, NamedData
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from us3l.commands.screen import CommandScreen
    from us3l.data.images import Images
    from us3l.data.splits import Split
    from us3l.run import Run
    from us3l.run.evaluations import EvaluationRecord
    from us3l.slimmable import Slimmable
    from us3l.system.progress import Progress
    from us3l.width import Width


@dataclass(frozen=True)
class Evaluate(EvaluationSettings, NamedData, ModelCommand):
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
      us3l evaluate runs/photos --data more-photos/ --widths 1 0.25
    """

    data: Data | None = None
    """Images to evaluate on (default: those that the run was trained on)."""
    _: KW_ONLY
    test_data: Annotated[Data | None, PYTHON_ONLY] = None
    """Images to test on (default: the test part of `data`, a fifth of it if there is none)."""
    train_images: int | None = None
    """Learn from only this many labelled images (default: all, or the number that the run itself used)."""
    test_images: int | None = None
    """Test on only this many images, the same number of each class (default: all)."""
    stream: bool = False
    """Decode images as they are needed, even if they would fit into memory."""
    memory_gib: float = 4.0
    """Memory for decoded images; larger sets are read as with `stream`."""
    retrieval: bool = False
    """Also measure how well queries of each width find images of their class in a gallery of each other width."""
    name: str | None = None
    """Name of the result, eval/NAME.json (default: the data's name, followed by the protocol unless it is fast)."""
    overwrite: bool = False
    """Replace an earlier result of that name. Otherwise widths are added to it, if the settings are the same."""


@command(Evaluate)
def evaluate(settings: Evaluate) -> EvaluationRecord:
    """Measure accuracy at each width on labelled images, or quality on images without labels.

    Of a network in memory nothing is written.

    Returns:
        The record that was kept; `rows` has a dictionary per width.
    """
    from us3l.data.sources import tell_damaged
    from us3l.evaluation.measure import evaluate_network, evaluate_run
    from us3l.evaluation.prepare import check_labels
    from us3l.run.cards import write_card
    from us3l.run.identity import name_of
    from us3l.run.unsaved import run_of
    from us3l.system.progress import progress_of

    progress = progress_of(settings.progress)
    run = run_of(settings.run)
    train, test, data = opened(settings, run, run.network, progress)
    if settings.retrieval:
        check_labels(train, test)
        if not run.saved:
            raise UserError("a network in memory has no place for the results: `retrieval` is for runs")
    called = name_of(data) or train.name
    if not run.saved:
        record, evaluation = evaluate_network(run.network, train, test, settings, called, progress=progress)
        tell_damaged(progress, called, evaluation.damaged)
        return record
    start_name, start = network_at_start(run, settings, progress)
    record = evaluate_run(
        run,
        train,
        test,
        settings if start_name is None or start else replace(settings, floor=False),
        called,
        name=settings.name,
        overwrite=settings.overwrite,
        start=start,
        start_name=start_name,
        progress=progress,
    )
    write_card(run)
    if settings.retrieval:
        measure_retrieval(run, train, test, record, data, settings, progress)
    return record


def opened(settings: Evaluate, run: Run, net: Slimmable, progress: Progress) -> tuple[Images, Images, Data]:
    """Return the images to learn from, those to test on, and what they were opened from."""
    from us3l.data.preprocessing import Preprocessing
    from us3l.data.sources import open_images
    from us3l.training.run_config import config_of

    data, train_images = settings.data, settings.train_images
    if data is None:
        if not run.started:
            raise UserError("say which labelled images to use (`data`)")
        config = config_of(run)
        data, train_images = config.source, train_images or config.recipe.images
    side, memory = Preprocessing.of(net).resize, int(settings.memory_gib * 2**30)
    how: dict[str, Any] = {
        "root": settings.data_root, "stream": settings.stream, "memory": memory, "progress": progress, "labelled": True
    }  # fmt: skip
    tested: Data = data
    splits: tuple[Split, Split] = ("train", "test")
    if settings.split == "validation":
        if settings.test_data is not None:
            raise UserError("`test_data` are images to test on: leave out split='validation'")
        tell_learned(run, progress)
        splits = ("learn", "validation")
    elif settings.test_data is not None:
        tested, splits = settings.test_data, ("all", "all")
    train = open_images(data, splits[0], side, limit=train_images, **how)
    test = open_images(tested, splits[1], side, limit=settings.test_images, **how)
    return train, test, data


def network_at_start(run: Run, settings: Evaluate, progress: Progress) -> tuple[str | None, Slimmable | None]:
    """Return the name of the pretrained network that a run began with, and the network at all widths.

    Returns:
        None, None: it began with random weights. The network is None where it is not needed, or cannot be opened.
    """
    import torch

    from us3l.families.family import as_family
    from us3l.training.configuration import open_start_of
    from us3l.training.run_config import config_of
    from us3l.training.run_networks import new_network

    if not run.started:
        return None, None
    config = config_of(run)
    if config.recipe.init is None or settings.protocol != "fast" or not settings.floor:
        return config.recipe.init, None
    try:
        source = open_start_of(config, run)
    except UserError as error:
        progress.say(f"no floor, the network that the run began with cannot be opened: {error}", style="yellow")
        return config.recipe.init, None
    with torch.random.fork_rng(devices=[]):
        start = new_network(config.recipe, None if run.family is None else as_family(run.family), source)
    start.metadata = run.network.metadata
    return config.recipe.init, start


def tell_learned(run: Run, progress: Progress) -> None:
    """Say so if a run has learned from its validation images, without their labels."""
    from us3l.training.run_config import config_of

    if run.started and not config_of(run).recipe.validation:
        progress.say(
            "the training did not hold validation images out: it has seen them, if they are of its own data "
            "(`us3l pretrain --validation` holds them out)",
            style="yellow",
        )


def measure_retrieval(
    run: Run,
    train: Images,
    test: Images,
    record: EvaluationRecord,
    data: Data,
    settings: EvaluationSettings,
    progress: Progress,
) -> None:
    """Measure retrieval across the widths of an evaluation, and write the record."""
    from us3l.collection.shared_space import fit_missing
    from us3l.evaluation.knn import images_to_search, retrieval_matrix
    from us3l.evaluation.prepare import chosen_widths
    from us3l.run.evaluations import RETRIEVALS, RetrievalRecord

    net = run.network
    widths = chosen_widths(net, settings.widths)
    fitted = fit_missing(run, net, widths, None if run.data else data, progress)

    def network_of(width: Width) -> nn.Module:
        head = fitted[net.canonical(width)]
        return head.on(head.encoder(width, net.at))

    with progress.counting("searching (images x widths)", images_to_search(train, test, widths)) as count:
        rows = retrieval_matrix(net, train, test, widths, network_of, count.more)
    RETRIEVALS.write(run, RetrievalRecord(record.data or record.name, rows, len(train), len(test), name=record.name))


def main(settings: Evaluate, screen: CommandScreen) -> None:
    from us3l.commands import report
    from us3l.run.unsaved import run_of

    record = evaluate.with_settings(settings)
    run = run_of(settings.run)
    show(screen, run, record)
    if settings.retrieval:
        show_retrieval(screen, run, record.name)
    report.renew(run_of(settings.run).folder)


def show(screen: CommandScreen, run: Run, record: EvaluationRecord) -> None:
    from us3l.reporting.accuracy_figures import evaluation_figures
    from us3l.reporting.tables import WITHOUT_LABELS, few_labels_table, results_table, uncertainty

    base = evaluation_figures(run, record)
    screen.console.print(results_table(record.widths))
    if record.few_labels:
        screen.console.print("linear probe from a share of the labels, %")
        screen.console.print(few_labels_table(record.few_labels))
    screen.say(uncertainty(record.widths, record.tested or 0) if record.metric else WITHOUT_LABELS)
    if record.start and any(row.untrained for row in record.widths):
        screen.say(f"untrained: the network that the run began with, {record.start}, cut to each width")
    if record.duplicates:
        repeated = f"{record.duplicates:,} of {record.test_images:,} test images are training images too"
        screen.say(f"{repeated}, byte by byte: accuracies are too high", style="yellow")
    screen.say(f"written: {base}.json" + (", .png and -costs.png" if record.metric else ""))


def show_retrieval(screen: CommandScreen, run: Run, name: str) -> None:
    from us3l.reporting.tables import retrieval_table
    from us3l.run.evaluations import RETRIEVALS

    for metric, title in (("recall", "recall@1"), ("knn", "kNN")):
        screen.say(f"{title} in the space that all widths share, %: queries in rows, galleries in columns")
        screen.console.print(retrieval_table(RETRIEVALS.read(run, name), metric))
    screen.say(f"written: {RETRIEVALS.file(run, name)}")
