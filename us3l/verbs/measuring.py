"""`us3l.evaluate`, `us3l.detect` and `us3l.compare`: how good the widths are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.run.folder import Product
from us3l.system.errors import UserError
from us3l.system.progress import Progress, Told, progress_of
from us3l.training.run_config import config_of
from us3l.training.settings import with_settings
from us3l.verbs.arguments import AnyRun, borrowed, built, check_out, name_of, run_of
from us3l.verbs.pretraining import with_weights
from us3l.width import Width

if TYPE_CHECKING:
    from torch import nn

    from us3l.data.sources import Data
    from us3l.evaluation.comparing import Comparison
    from us3l.evaluation.jobs import Job
    from us3l.run import Run
    from us3l.run.detections import DetectionRecord
    from us3l.run.evaluations import EvaluationRecord
    from us3l.slimmable import Slimmable


def evaluate(
    run: AnyRun | Slimmable,
    data: Data | None = None,
    *,
    test_data: Data | None = None,
    data_root: str | Path | None = None,
    train_images: int | None = None,
    test_images: int | None = None,
    stream: bool = False,
    memory_gib: float = 4.0,
    weights: Product | None = None,
    retrieval: bool = False,
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> EvaluationRecord:
    """Accuracy at each width, measured on labelled images; quality without labels on any.

    Args:
        run: a run, the path of its folder, or a network; of a network nothing is written.
        data: images, labelled unless quality without labels is enough (default: those that the run was trained on).
        test_data: images to test on (default: the test part of `data`, a fifth of it if there is none).
        data_root: where data sets that have a name lie (default: the environment's US3L_DATA, else ./data).
        train_images: learn from only this many images (default: all, or the number that the run itself used).
        test_images: test on only this many images, the same number per class (default: all).
        stream: decode images as they are needed, even if they would fit into memory.
        memory_gib: memory for decoded images; larger sets are streamed.
        weights: "teacher" for those of a run's momentum teacher, whose results are kept apart, in teacher/; "student"
            for the trained network's (default: those of the run's model). A model that the run did not keep is made of
            its last checkpoint.
        retrieval: also measure how well queries of each width find images of their class in a gallery of each other
            width, in the space that all share; see `us3l.embed`. It is written to retrieval/NAME.json.
        name: of the result, eval/NAME.json (default: the data's, followed by the protocol's unless that is fast).
        overwrite: replace an earlier result of that name, instead of adding widths to it.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l evaluate`, such as `widths=(1, 0.5)`, `protocol="paper"` or `device="cuda"`.

    Returns:
        The record that was kept; `rows` has a dictionary per width.
    """
    from us3l.data.preprocessing import Preprocessing
    from us3l.data.sources import open_images, tell_damaged
    from us3l.evaluation.jobs import Job
    from us3l.evaluation.settings import EvaluationSettings
    from us3l.evaluation.tasks import check_labels
    from us3l.run.cards import write_card
    from us3l.run.classifiers import read_classifier
    from us3l.slimmable import Slimmable

    told, chosen = progress_of(progress), built(EvaluationSettings, settings, "evaluate")
    if isinstance(run, Slimmable):
        if weights is not None:
            raise UserError(
                "a network has its weights already: `weights` is for runs, which have a student and a teacher"
            )
        kept, net = None, run
    else:
        kept = with_weights(run_of(run), weights, told)
        net = kept.network
    if data is None:
        if kept is None or not kept.origin.started:
            raise UserError("say which labelled images to use (`data`)")
        config = config_of(kept.origin)
        data, train_images = config.source, train_images or config.recipe.images
    where: dict[str, Any] = {"root": data_root, "stream": stream, "memory": int(memory_gib * 2**30), "progress": told}
    where["labelled"] = True
    side = Preprocessing.of(net).resize
    if chosen.split == "validation":
        if test_data is not None:
            raise UserError("`test_data` are images to test on: leave out split='validation'")
        tell_learned(kept, told)
        train = open_images(data, "learn", side, limit=train_images, **where)
        test = open_images(data, "validation", side, limit=test_images, **where)
    elif test_data is None:
        train = open_images(data, "train", side, limit=train_images, **where)
        test = open_images(data, "test", side, limit=test_images, **where)
    else:
        train = open_images(data, "all", side, limit=train_images, **where)
        test = open_images(test_data, "all", side, limit=test_images, **where)
    classifier = None
    if chosen.protocol == "classifier":
        if kept is None:
            raise UserError("a network has no classifier of its own: the protocol 'classifier' is for runs")
        classifier = read_classifier(kept)
    job = Job(net, train, test, chosen, name_of(data), classifier)
    if retrieval:
        check_labels(train, test)
    if kept:
        job.check(kept, name, overwrite)
    evaluation = job.run(told)
    tell_damaged(told, name_of(data), evaluation.damaged)
    record = job.keep(kept, evaluation, name, overwrite) if kept else job.recorded(evaluation)
    if kept:
        write_card(kept)
    if retrieval:
        search(kept, job, record.name, data, told)
    return record


def tell_learned(run: Run | None, progress: Progress) -> None:
    """Say so if a run has learned from its validation images, without their labels."""
    if run is not None and run.origin.started and not config_of(run.origin).recipe.validation:
        progress.say(
            "the training did not hold validation images out: it has seen them, if they are of its own data "
            "(`us3l pretrain --validation` holds them out)",
            style="yellow",
        )


def search(run: Run | None, job: Job, name: str, data: Data, progress: Progress) -> None:
    """Measure retrieval across the widths of an evaluation, and keep what was found."""
    from us3l.collection.shared_space import fit_missing
    from us3l.evaluation.retrieval import images_to_search, retrieval_matrix
    from us3l.run.retrievals import Retrievals, write_retrievals

    if run is None:
        raise UserError("a network in memory has no place for what is found: `retrieval` is for runs")
    fitted = fit_missing(run, job.net, job.widths, None if run.data else data, progress)

    def network_of(width: Width) -> nn.Module:
        head = fitted[job.net.canonical(width)]
        return head.on(head.encoder(width, job.net.at))

    with progress.counting("searching", images_to_search(job.train, job.test, job.widths)) as count:
        rows = retrieval_matrix(job.net, job.train, job.test, job.widths, network_of, count.more)
    found = Retrievals(job.data or name, [row.to_plain() for row in rows], len(job.train), len(job.test), run.weights)
    write_retrievals(run, found, name)


def detect(
    run: AnyRun | Slimmable,
    data: str | Path,
    width: Width,
    *,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> DetectionRecord:
    """Train Faster or Mask R-CNN on the network of one width, and test it on images with boxes.

    Args:
        run: a run, the path of its folder, or a network, for which `out` is needed.
        data: "voc", "coco", or a folder in the layout of either.
        width: of the sub-network.
        data_root: where voc and coco lie (default: the environment's US3L_DATA, else ./data).
        out: folder for the results (default: detect/ in the run's folder).
        resume: go on with a training that was stopped; the settings must be the same.
        overwrite: replace earlier results of this data and width.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l detect`, such as `steps=500`, `batch=4`, `masks="no"` or `device="cuda"`.

    Returns:
        The record that was kept; `rows` has a dictionary per class, that of all classes first.
    """
    from us3l.detection.objects import detect_objects
    from us3l.detection.schedule import DetectionSettings

    chosen, told = with_settings(DetectionSettings(), settings), progress_of(progress)
    where: dict[str, Any] = {"data_root": data_root, "out": out, "resume": resume, "overwrite": overwrite}
    check_out(run, out)
    with borrowed(run) as place:
        return detect_objects(place, data, width, chosen, **where, progress=told).record


def compare(*runs: AnyRun, data: str | None = None, metric: str | None = None) -> Comparison:
    """Accuracy of several evaluated runs at each width; runs that differ only in their seed are one column.

    Args:
        runs: those to compare; the others are compared with the first.
        data: the evaluation, by its name (default: the one that all runs have).
        metric: "linear", "finetuned" or "knn" (default: the first of these that all runs have).

    Returns:
        The comparison; `rows` has a dictionary per width.
    """
    from us3l.evaluation.comparing import compare_runs

    return compare_runs(runs, data, metric)
