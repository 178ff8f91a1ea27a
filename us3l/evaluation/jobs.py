"""One evaluation from its settings to its results, by any protocol."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.frozen import evaluate_frozen, images_to_embed
from us3l.evaluation.protocols import PROBES, ProbeKind, Training
from us3l.evaluation.settings import EvaluationSettings
from us3l.evaluation.tasks import NINE_WIDTHS, Evaluation, check_labels, prepare
from us3l.evaluation.trained import (
    evaluate_classifier,
    evaluate_finetuned,
    evaluate_paper,
    images_to_train,
    probe_kind,
)
from us3l.evaluation.unlabelled import enough, evaluate_unlabelled, images_to_look_at, with_quality
from us3l.run import Run
from us3l.run.classifiers import ElasticClassifier
from us3l.run.evaluations import EvaluationRecord, settle, write_evaluation
from us3l.run.finetuned import write_finetuned
from us3l.run.identity import identify
from us3l.run.probes import keep_probes
from us3l.setting_types import several
from us3l.slimmable import Slimmable
from us3l.system.devices import choose_device, moved
from us3l.system.progress import SILENT, Progress
from us3l.width import Width


@dataclass(frozen=True)
class Job:
    """A network, images and settings that fit together; nothing is computed before `run`.

    Of images without labels, the fast protocol measures quality without labels.

    Raises:
        UserError: They do not fit together.
    """

    net: Slimmable
    train: Images
    """To learn from."""
    test: Images
    """To test on."""
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)
    data: str | None = None
    """How the user named the images."""
    classifier: ElasticClassifier | None = None
    """The one that the network was trained with, for the protocol "classifier"."""

    def __post_init__(self) -> None:
        _ = self.widths
        needs_labels = self.settings.protocol != "fast" or self.settings.label_share or not self.settings.quality
        if self.labelled or needs_labels or enough(self.train, self.test) is None:
            check_labels(self.train, self.test)
        _ = self.training

    @property
    def labelled(self) -> bool:
        """Whether any of the images have labels."""
        return self.train.labels is not None or self.test.labels is not None

    @cached_property
    def widths(self) -> list[Width]:
        """Those to evaluate, each once."""
        asked = self.settings.widths
        if asked == "all":
            return [*self.net.widths[::-1]]
        chosen = several(asked) if asked else self.net.among(NINE_WIDTHS)
        return list(dict.fromkeys(map(self.net.check, chosen)))

    @property
    def size(self) -> int:
        """Side of the images that the network sees."""
        return Preprocessing.of(self.net).size

    @property
    def probe(self) -> ProbeKind | None:
        """Which of the paper's probes; None for other protocols."""
        if self.settings.protocol != "paper":
            return None
        return probe_kind(self.net, self.train) if self.settings.probe == "auto" else self.settings.probe

    @property
    def training(self) -> Training | None:
        """How classifiers are trained; None for protocols that do not train by steps."""
        return self.settings.training(self.size, self.probe or "transfer")

    @property
    def record(self) -> EvaluationRecord:
        """What is going to be measured, without any results; of images that are read meanwhile, it knows more later."""
        protocol, name = self.settings.protocol, self.train.name
        suffixes = [protocol] * (protocol != "fast") + [self.settings.split] * (self.settings.split != "test")
        identity = identify(self.data or name, self.train, self.test)
        return EvaluationRecord(
            name="-".join([name, *suffixes]),
            widths=[],
            data=self.data or name,
            identity=identity,
            protocol=protocol,
            split=self.settings.split,
            probe=self.probe,
            training=asdict(self.training) if self.training else None,
            size=self.size,
            train_images=identity.train_images,
            test_images=identity.test_images,
            seeds=self.settings.seeds,
            classes=self.train.classes,
        )

    def check(self, run: Run, name: str | None = None, overwrite: bool = False) -> None:
        """Learn before the work what speaks against keeping its results; see `keep`.

        If they are to join those of an earlier evaluation, every image is compared with what it was then.
        """
        if settle(run, self.record, name, overwrite).widths:
            for images in (self.train, self.test):
                images.read_contents()
            settle(run, self.record, name, overwrite)

    def keep(
        self, run: Run, evaluation: Evaluation, name: str | None = None, overwrite: bool = False
    ) -> EvaluationRecord:
        """Write results into a run's folder: the record, the linear classifiers, and the fine-tuned networks.

        Args:
            run: Whose network was evaluated.
            evaluation: What `run` returned.
            name: Of the result (default: that of the data and the protocol).
            overwrite: Replace an earlier result of that name, instead of adding widths to it.

        Returns:
            The record as it was written.
        """
        record = settle(run, self.recorded(evaluation), name, overwrite)
        if evaluation.probes:
            linear = {width: (probe.weight, probe.bias) for width, probe in evaluation.probes.items()}
            temperatures = {width: probe.temperature for width, probe in evaluation.probes.items() if probe.temperature}
            keep_probes(run, record, linear, overwrite, temperatures)
        for width, network in evaluation.networks.items():
            write_finetuned(run, record, width, network.state_dict())
        write_evaluation(run, record)
        return record

    def recorded(self, evaluation: Evaluation) -> EvaluationRecord:
        """Results as a record, which nobody has written yet."""
        return replace(
            self.record, widths=evaluation.results, scores=evaluation.scores, few_labels=evaluation.few_labels
        )

    def run(self, progress: Progress = SILENT) -> Evaluation:
        """Evaluate, on the device that the settings ask for. The network comes back to where it was.

        Args:
            progress: Told which probe was chosen, and how many images were seen.
        """
        settings, training, images = self.settings, self.training, (self.train, self.test)
        if self.probe:
            progress.say(f"the paper's probe for {PROBES[self.probe]}: {training}")
        with moved(self.net, choose_device(settings.device)):
            if self.classifier is not None:
                with progress.counting("testing the classifier", len(self.widths) * len(self.test)) as count:
                    return evaluate_classifier(self.net, *images, self.classifier, self.widths, None, count.more)
            if training is None:
                return self.run_fast(progress)
            whole = settings.protocol == "finetune"
            total = images_to_train(*images, self.widths, training, settings.seeds, whole)
            with progress.counting("training classifiers", total) as count:
                evaluate = evaluate_finetuned if whole else evaluate_paper
                return evaluate(self.net, *images, self.widths, None, training, settings.seeds, count.more)

    def run_fast(self, progress: Progress) -> Evaluation:
        """The fast protocol: accuracies where there are labels, and quality without them."""
        settings, images = self.settings, (self.train, self.test)
        total = images_to_embed(*images, self.widths, settings.floor) if self.labelled else 0
        total += images_to_look_at(*images, self.widths) if settings.quality else 0
        with progress.counting("embedding", total) as count:
            if not self.labelled:
                return evaluate_unlabelled(self.net, *images, self.widths, None, count.more)
            found = evaluate_frozen(
                self.net,
                *images,
                self.widths,
                None,
                settings.floor,
                several(settings.label_share),
                settings.seeds,
                count.more,
            )
            if not settings.quality:
                return found
            return with_quality(found, prepare(self.net, *images, self.widths, labelled=False), count.more)
