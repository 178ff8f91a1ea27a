"""One evaluation, by any protocol: settings in, one record out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from us3l.data.contents import duplicates
from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import tell_damaged
from us3l.evaluation.frozen_features import evaluate_fast, images_to_embed, untrained
from us3l.evaluation.gradient_descent import (
    evaluate_classifier,
    evaluate_finetuned,
    evaluate_paper,
    images_to_train,
)
from us3l.evaluation.prepare import Evaluation, EvaluationInputs, check_labels, enough_images, prepare
from us3l.evaluation.protocols import PROBES, EvaluationSettings, ProbeKind, Training, usual_probe
from us3l.evaluation.unlabelled import images_to_look_at, measure_quality
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, EvaluationRecord, with_earlier
from us3l.run.finetuned_networks import write_finetuned
from us3l.run.identity import identify
from us3l.run.linear_maps import ElasticClassifier, keep_probes, read_classifier
from us3l.setting_types import several
from us3l.slimmable import Slimmable
from us3l.system.devices import choose_device, moved
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.width import Width


def evaluate_run(
    run: Run,
    train: Images,
    test: Images,
    settings: EvaluationSettings,
    data: str,
    *,
    name: str | None = None,
    overwrite: bool = False,
    start: Slimmable | None = None,
    start_name: str | None = None,
    progress: Progress = SILENT,
) -> EvaluationRecord:
    """Evaluate a run's network, and write the record, the linear classifiers and the fine-tuned networks.

    What speaks against it is an error before the work.

    Args:
        run: The run, or a model's folder.
        train: Images to learn from.
        test: Images to test on.
        settings: What is measured, and how.
        data: What the user calls the images.
        name: Of the result, eval/NAME.json (default: that of the data, then the protocol's unless it is fast, then the
            split's unless it is test).
        overwrite: Replace an earlier result of that name, instead of adding widths to it.
        start: The network that the run began with (default: one of random weights).
        start_name: What to call it, for the record.
        progress: Where it reports to.

    Returns:
        The record as it was written.
    """
    net = run.network
    plan = replace(plan_evaluation(net, train, test, settings, data), start=start_name)
    if with_earlier(run, plan, name, overwrite).widths:  # every image is compared with what it was then
        for images in (train, test):
            images.read_contents()
        plan = replace(plan, identity=identify(data, train, test))
        with_earlier(run, plan, name, overwrite)
    EVALUATIONS.check_writable(run)
    classifier = read_classifier(run) if settings.protocol == "classifier" else None
    record, evaluation = evaluate_network(
        net, train, test, settings, plan=plan, classifier=classifier, start=start, progress=progress
    )
    tell_damaged(progress, data, evaluation.damaged)
    record = replace(record, identity=identify(data, train, test))  # of images read meanwhile, more is known
    record = with_earlier(run, record, name, overwrite)
    if probes := evaluation.probes:
        linear = {width: (probe.weight, probe.bias) for width, probe in probes.items()}
        temperatures = {width: probe.temperature for width, probe in probes.items() if probe.temperature}
        thresholds = {width: probe.threshold for width, probe in probes.items() if probe.threshold}
        keep_probes(run, record, linear, overwrite, temperatures, thresholds)
    for width, network in evaluation.networks.items():
        write_finetuned(run, record, width, network.state_dict())
    return EVALUATIONS.write(run, record)


def evaluate_network(
    net: Slimmable,
    train: Images,
    test: Images,
    settings: EvaluationSettings | None = None,
    data: str | None = None,
    *,
    plan: EvaluationRecord | None = None,
    classifier: ElasticClassifier | None = None,
    start: Slimmable | None = None,
    progress: Progress = SILENT,
) -> tuple[EvaluationRecord, Evaluation]:
    """Evaluate a network, on the device that the settings ask for. Nothing is written.

    Args:
        net: The network, which stays as it is, but for the calibration of widths that have none.
        train: Images to learn from. Without labels, the fast protocol measures quality without labels only.
        test: Images to test on.
        settings: What is measured, and how.
        data: What the user calls the images (default: their name).
        plan: What `plan_evaluation` gave, if it was asked before.
        classifier: The one that the network was trained with, for the protocol "classifier".
        start: The network that training began with (default: one of random weights).
        progress: Where it reports to.

    Returns:
        The record; and the classifiers and networks that were trained on the way.
    """
    settings = settings or EvaluationSettings()
    plan = plan or plan_evaluation(net, train, test, settings, data)
    labelled, protocol = has_labels(train, test), settings.protocol
    with moved(net, choose_device(settings.device)):
        compared = protocol == "fast" and settings.quality
        prepared = prepare(net, train, test, settings.widths, labelled, compared)
        if protocol == "fast":
            evaluation = _fast(prepared, settings, start, progress)
        elif protocol == "classifier":
            if classifier is None:
                raise UserError("a network has no classifier of its own: the protocol 'classifier' is for runs")
            with progress.counting("testing the classifier", len(prepared.widths) * len(test)) as count:
                evaluation = evaluate_classifier(prepared, classifier, count.more)
        else:
            training = training_of(net, train, settings)
            assert training is not None
            if protocol == "paper":
                progress.say(f"the paper's probe for {PROBES[probe_kind(net, train, settings)]}: {training}")
            evaluate = evaluate_finetuned if protocol == "finetune" else evaluate_paper
            total = images_to_train(prepared, training, settings.seeds, whole=protocol == "finetune")
            with progress.counting("training classifiers (images x widths)", total) as count:
                evaluation = evaluate(prepared, training, settings.seeds, count.more)
    repeated = len(duplicates(train.contents, test.contents))
    return replace(plan, widths=evaluation.rows, few_labels=evaluation.few_labels, duplicates=repeated), evaluation


def _fast(
    prepared: EvaluationInputs, settings: EvaluationSettings, start: Slimmable | None, progress: Progress
) -> Evaluation:
    """Measure accuracies where there are labels, and quality without them."""
    labelled = has_labels(prepared.train, prepared.test)
    floor = (start or untrained(prepared.net)) if settings.floor and labelled else None
    total = images_to_embed(prepared, floor is not None) if labelled else 0
    total += images_to_look_at(prepared) if settings.quality else 0
    with progress.counting("embedding (images x networks)", total) as count:
        if labelled:
            evaluation = evaluate_fast(prepared, floor, several(settings.label_share), settings.seeds, count.more)
        else:
            evaluation = Evaluation([prepared.row(width) for width in prepared.widths])
        quality: Mapping[Width, Mapping[str, Any]] = measure_quality(prepared, count.more) if settings.quality else {}
    rows = [replace(row, **quality.get(row.width, {})) for row in evaluation.rows]
    return replace(evaluation, rows=rows)


def plan_evaluation(
    net: Slimmable,
    train: Images,
    test: Images,
    settings: EvaluationSettings,
    data: str | None = None,
) -> EvaluationRecord:
    """Return the record of an evaluation without its results.

    Args:
        net: The network.
        train: Images to learn from.
        test: Images to test on.
        settings: What is measured, and how.
        data: What the user calls the images (default: their name).

    Raises:
        UserError: They do not fit together.
    """
    needs_labels = settings.protocol != "fast" or settings.label_share or not settings.quality
    if has_labels(train, test) or needs_labels or enough_images(train, test) is None:
        check_labels(train, test)
    protocol, training = settings.protocol, training_of(net, train, settings)
    identity = identify(data or train.name, train, test)
    suffixes = [protocol] * (protocol != "fast") + [settings.split] * (settings.split != "test")
    return EvaluationRecord(
        name="-".join([train.name, *suffixes]),
        widths=[],
        data=data or train.name,
        identity=identity,
        split=settings.split,
        protocol=protocol,
        probe=probe_kind(net, train, settings) if protocol == "paper" else None,
        training=asdict(training) if training else None,
        size=Preprocessing.of(net).size,
        train_images=identity.train_images,
        test_images=identity.test_images,
        seeds=settings.seeds,
        classes=train.classes,
    )


def probe_kind(net: Slimmable, train: Images, settings: EvaluationSettings) -> ProbeKind:
    """Return which of the paper's probes goes with a network and the images to learn from."""
    return usual_probe(train.name, net.family.transformer) if settings.probe == "auto" else settings.probe


def training_of(net: Slimmable, train: Images, settings: EvaluationSettings) -> Training | None:
    """Return how classifiers are trained; None for protocols that do not train by steps."""
    return settings.training(Preprocessing.of(net).size, probe_kind(net, train, settings))


def has_labels(train: Images, test: Images) -> bool:
    """Return whether any of the images have labels."""
    return train.labels is not None or test.labels is not None
