"""What `--recipe slim` makes of a pretrained MobileNetV2, beside all that one could do instead.

python -m benchmarks.slim --out runs/slim-comparison           three seeds of everything
python -m benchmarks.slim --out runs/short --epochs 5 --seeds 1
python -m benchmarks.slim --out runs/known --known benchmarks/figures/slim.json --only none      the tables as measured

It can be stopped and started again: runs are resumed, and what was measured is not measured again. The figures are in
OUT/results.json and OUT/results.md.
"""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import tyro

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.evaluation.frozen_features import features, judge
from us3l.evaluation.prepare import prepare
from us3l.run.training_log import Gauges, read_records
from us3l.sorting import sort_channels
from us3l.storage import read_tensors
from us3l.system.devices import keep_freed_memory
from us3l.system.files import write_json

WIDTHS = (1.0, 0.75, 0.5, 0.25)
SIZE, CIFAR_SIZE = 96, 64
CALIBRATION = 2048
CLASSES = {
    "tench": 0, "english_springer": 217, "cassette_player": 482, "chain_saw": 491, "church": 497, "french_horn": 566,
    "garbage_truck": 569, "gas_pump": 571, "golf_ball": 574, "parachute": 701,
}  # fmt: skip
"""The classes of the photographs among ImageNet's thousand."""
BEFORE: dict[str, Any] = {
    "samples": 3, "stratified": False, "width_power": 0.0, "teacher_features": 0.5, "teacher_relations": 0.5
}  # fmt: skip
"""The recipe as it was until 18 November 2026."""
CHANGES: dict[str, dict[str, Any]] = {
    "before": BEFORE,
    "features": {"teacher_features": 1.0, "teacher_relations": 0.0},
    "similarities": {"teacher_features": 0.0, "teacher_relations": 1.0},
    "cold": {"relation_temperature": 0.03},
    "fast": {"lr": 1e-2},
    "slow": {"lr": 1e-3},
    "equal": {"width_power": 0.0},
    "together": BEFORE | {"update": "per-batch"},
    "mixed": BEFORE | {"update": "per-batch", "mixed": 0.5, "mixed_depth": 0.5},
}
"""Other settings of the recipe, to choose by."""
IMAGENET = "ImageNet's classifier, ten classes"
LABELLED = "classifier learned with labels"
USUAL = ("cut", "sorted", "varied", "slim", "labelled", "scratch", "alone", "resnet-taught", "resnet-scratch")
LABELS = {
    "cut": "cut and calibrated, not trained",
    "sorted": "the same, channels in order of importance",
    "varied": "the same, importance measured on images",
    "slim": "`--recipe slim`",
    "alone": "each width distilled alone",
    "scratch": "US3L-plus from random weights",
    "labelled": "trained on with labels: one classifier for all widths",
    "before": "`slim` before: three widths, half features, half similarities",
    "together": "the same, `--update per-batch`",
    "mixed": "the same, `--update per-batch --mixed 0.5 --mixed-depth 0.5`",
    "resnet-taught": "ResNet-18 taught by it (`--teacher`)",
    "resnet-scratch": "ResNet-18 by US3L-plus",
}
"""What the tables call each kind of row, in their order."""
SETTINGS = ("epochs", "precision")
"""Of the comparison: all of its rows have the same."""
Figures = dict[str, dict[str, float]]
"""By measure, then by width."""


@dataclass(frozen=True)
class Comparison:
    """Measure what `--recipe slim` makes of a pretrained MobileNetV2."""

    out: Path
    """Folder for runs and results."""
    data: Path = Path("../shared/data")
    """With photos/, cifar10/ and weights/."""
    epochs: int = 10
    """Of every run."""
    seeds: int = 3
    precision: str = "bf16-mixed"
    """Of the training. bf16-mixed takes 0.7 of the time on processors with avx512_bf16: see slim_step.py."""
    only: tuple[str, ...] = USUAL
    """Kinds of rows to measure; others are unsorted and by-images (other orders of channels), before, features,
    similarities, cold, fast, slow, equal, together and mixed (other settings of the recipe)."""
    known: Path | None = None
    """results.json of another folder, whose rows are not measured again."""


@dataclass(frozen=True)
class Row:
    """One thing to measure."""

    kind: str
    seed: int
    measure: Callable[[], Figures]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


class Bench:
    def __init__(self, command: Comparison) -> None:
        self.command = command
        self.photos, self.cifar = str(command.data / "photos"), str(command.data / "cifar10")
        self.weights = command.data / "weights" / "mobilenet_v2-imagenet1k.safetensors"
        self.state = read_tensors(self.weights, whole_numbers=True)

    def rows(self) -> Iterator[Row]:
        """The cheap ones first, then seed by seed."""
        yield Row("cut", 0, self.untrained)
        yield Row("sorted", 0, partial(self.untrained, by="weights"))
        yield Row("varied", 0, partial(self.untrained, by="images"))
        started = {"init": self.weights}
        scratch: dict[str, Any] = {"recipe": "mini-photos", "method": "us3l-plus", "batch_size": 64, "lr": 0.1}
        resnet: dict[str, Any] = {"backbone": "resnet18", "base": 32}
        for seed in range(self.command.seeds):
            yield Row("slim", seed, partial(self.trained, f"slim-{seed}", seed, **started))
            yield Row("labelled", seed, partial(self.labelled, seed))
            yield Row("scratch", seed, partial(
                self.trained, f"scratch-{seed}", seed, **scratch, backbone="mobilenet_v2", base=64
            ))  # fmt: skip
            for width in WIDTHS[1:]:
                alone = partial(self.trained, f"alone-{width:g}-{seed}", seed, individual=width, **started)
                yield Row(f"alone-{width:g}", seed, partial(renamed, alone, width))
            yield Row("resnet-taught", seed, partial(
                self.trained, f"resnet-taught-{seed}", seed, teacher=self.weights, stem="imagenet", **resnet
            ))  # fmt: skip
            yield Row(
                "resnet-scratch", seed, partial(self.trained, f"resnet-scratch-{seed}", seed, **scratch, **resnet)
            )
            yield Row("unsorted", seed, partial(self.resorted, f"unsorted-{seed}", seed, None))
            yield Row("by-images", seed, partial(self.resorted, f"by-images-{seed}", seed, "images"))
            for kind, changes in CHANGES.items():
                yield Row(kind, seed, partial(self.trained, f"{kind}-{seed}", seed, **started, **changes))

    def source(self, by: str | None = None) -> us3l.Slimmable:
        """The pretrained network, its channels sorted by weights or by images, or as they are."""
        net = us3l.create("mobilenet_v2")
        net.load_plain({name: tensor for name, tensor in self.state.items() if not name.startswith("classifier")})
        net.metadata = {"preprocessing": Preprocessing.usual(SIZE).to_plain()}
        if by is not None:
            sort_channels(net.eval(), self.seen(512) if by == "images" else None)
        return net

    def untrained(self, by: str | None = None) -> Figures:
        """Its sub-networks merely calibrated."""
        net = self.source(by)
        us3l.calibrate(net, self.seen(CALIBRATION), WIDTHS[1:])
        return self.measured(net.eval())

    def run(self, name: str, seed: int, **settings: Any) -> us3l.Run:
        """A run by the recipe slim, or by another that the settings name; resumed, if it was begun."""
        settings = {"recipe": "slim", "size": SIZE, "seed": seed, "calibrated_widths": WIDTHS} | settings
        settings["precision"] = self.command.precision
        folder = self.command.out / "runs" / name
        if "individual" in settings:
            settings["calibrated_widths"] = (1.0,)
        again = us3l.Run(folder).started
        given = {"resume": True} if again else {"data": self.photos, "epochs": self.command.epochs, **settings}
        return us3l.pretrain(out=folder, progress="lines", **given)

    def trained(self, name: str, seed: int, **settings: Any) -> Figures:
        """What a run has learned, and on the way to it."""
        run = self.run(name, seed, **settings)
        looks = [record for record in read_records(run) if isinstance(record, Gauges)]
        curve = {
            f"knn while training, {look.step + 1} steps": {
                w: found["knn"] for w, found in look.gauges.items() if "knn" in found
            }
            for look in looks
        }
        figures = self.measured(run.network, transfer=name.startswith(("slim", "scratch")))
        if "init" not in settings:  # its features are not those that the classifier knows
            figures.pop(IMAGENET, None)
        return figures | curve

    def labelled(self, seed: int) -> Figures:
        """The run `slim` of that seed, trained on with labels: one classifier for all widths."""
        slim = self.run(f"slim-{seed}", seed, init=self.weights)
        run = self.run(f"labelled-{seed}", seed, init=slim.folder, method="us-net")
        found = us3l.evaluate(run, self.photos, protocol="classifier", widths=WIDTHS, overwrite=True)
        return {LABELLED: {f"{row['width']:g}": row["finetuned"] for row in found.rows}}

    def resorted(self, name: str, seed: int, by: str | None) -> Figures:
        """The recipe slim with channels in another order: those of a slimmable network are not sorted again."""
        return self.trained(name, seed, init=self.source(by))

    def measured(self, net: us3l.Slimmable, transfer: bool = False) -> Figures:
        """kNN, linear probe and, where it fits, ImageNet's own classifier on the photographs; also on CIFAR-10."""
        figures = self.probed(net, self.photos, "photos")
        return figures | (self.probed(net, self.cifar, f"cifar10 at {CIFAR_SIZE}", True) if transfer else {})

    @torch.no_grad()
    def probed(self, net: us3l.Slimmable, data: str, name: str, other: bool = False) -> Figures:
        """On images of one kind; those of another kind are fewer, and smaller."""
        size, most = (CIFAR_SIZE, (5_000, 2_000)) if other else (None, (None, None))
        side = Preprocessing.of(net, size).resize
        train, test = load(data, "train", side, limit=most[0]), load(data, "test", side, limit=most[1])
        if other:  # statistics belong to the size of the images, too
            net = without_statistics(net)
        widths = [width for width in WIDTHS if width >= net.min_width]
        prepared = prepare(net, train, test, widths, size=size)
        found: Figures = {}
        for width, learned, tested in features(net, prepared):
            scores, _ = judge(learned, tested, prepared.classes)
            percent = {f"{kind}, {name}": score.top1 for kind, score in scores.items()}
            if not other and net.family.name == "mobilenet_v2":
                right = (self.classified(tested.values[0]) == tested.labels).float().mean().item()
                percent[IMAGENET] = 100 * right
            for measure, value in percent.items():
                found.setdefault(measure, {})[f"{width:g}"] = value
        return found

    def classified(self, values: torch.Tensor) -> torch.Tensor:
        """Which of the ten classes ImageNet's own classifier sees."""
        rows = [CLASSES[name] for name in sorted(CLASSES)]  # as folders are
        weight, bias = (self.state[f"classifier.1.{part}"][rows] for part in ("weight", "bias"))
        return (values @ weight.T + bias).argmax(1)

    @cache  # noqa: B019 (there is one of it)
    def seen(self, count: int) -> torch.Tensor:
        """Training photographs as the network sees them."""
        preprocessing = Preprocessing.usual(SIZE)
        return preprocessing.apply(load(self.photos, "train", preprocessing.resize, limit=count).images)


def without_statistics(net: us3l.Slimmable) -> us3l.Slimmable:
    """The same network, not calibrated."""
    other = us3l.Slimmable(net.family, net.min_width)
    other.load_state_dict({k: v for k, v in net.state_dict().items() if k in other.state_dict()}, strict=False)
    other.metadata = net.metadata
    return other.eval()


def renamed(measure: Callable[[], Figures], width: float) -> Figures:
    """What was measured of a network that is called width 1, by the width that it has."""
    return {name: {f"{width:g}": next(iter(values.values()))} for name, values in measure().items()}


def summary(results: dict[str, Figures]) -> str:
    """The mean over seeds of everything, as tables; networks that were trained alone share a row."""
    kinds: dict[str, dict[str, Figures]] = {}
    for name, figures in results.items():
        kind, _, seed = name.rpartition("-")
        row = kinds.setdefault(kind.partition("-0.")[0], {}).setdefault(seed, {})
        for measure, values in figures.items():
            row[measure] = row.get(measure, {}) | values
    measures = dict.fromkeys(measure for figures in results.values() for measure in figures)
    lines = []
    for measure in measures:
        lines += [
            "",
            f"{measure}, %",
            "",
            "| | seeds | 1x | 0.75x | 0.5x | 0.25x |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for kind in sorted(kinds, key=lambda kind: [*LABELS, kind].index(kind)):
            found = [figures[measure] for figures in kinds[kind].values() if measure in figures]
            if found:
                cells = [
                    mean_cell([values[f"{width:g}"] for values in found if f"{width:g}" in values]) for width in WIDTHS
                ]
                lines.append(f"| {LABELS.get(kind, kind)} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines).strip() + "\n"


def mean_cell(values: list[float]) -> str:
    """The mean, and the standard deviation if there are several."""
    deviation = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}" if values else ""


def read_results(file: Path | None, command: Comparison) -> dict[str, Figures]:
    """The figures in a file, if there is one; those of other settings are not to be compared."""
    if file is None or not file.exists():
        return {}
    content = json.loads(file.read_text())
    for name in SETTINGS:
        if content[name] != getattr(command, name):
            raise SystemExit(f"{file} has {name}={content[name]}: give the same, or another --out")
    return content["results"]


def main() -> None:
    command = tyro.cli(Comparison)
    keep_freed_memory()
    warnings.filterwarnings("ignore", message="width .* is not calibrated")
    file = command.out / "results.json"
    results = read_results(command.known, command) | read_results(file, command)
    command.out.mkdir(parents=True, exist_ok=True)
    for row in Bench(command).rows():
        if row.name in results or row.kind.partition("-0.")[0] not in command.only:
            continue
        print(f"measuring {row.name} ...", flush=True)
        found = row.measure()
        print(json.dumps(found), flush=True)
        results = read_results(file, command) | results | {row.name: found}  # others may work in the same folder
        write_json(file, {name: getattr(command, name) for name in SETTINGS} | {"results": results})
    (command.out / "results.md").write_text(summary(results), encoding="utf-8")
    print(summary(results))


if __name__ == "__main__":
    main()
