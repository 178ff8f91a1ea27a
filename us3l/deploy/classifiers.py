"""Linear layers that go along with networks: classifiers that evaluation or training left, maps to the shared space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from us3l.costs import feature_count
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.linear import Probe
from us3l.evaluation.mapping import with_even_parts
from us3l.run import Run
from us3l.run.bundles import SHARED
from us3l.run.finetuned_networks import choose_evaluation, find_finetuned, finetuned_network
from us3l.run.identity import slug
from us3l.run.linear_maps import list_probes, read_classifier, read_probes
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width


@dataclass(frozen=True)
class Head:
    """A linear layer to go along with a network: a classifier, or the map into the space that all widths share."""

    probe: Probe
    classes: list[str] | None
    """None of a map, which gives features."""
    data: str
    """The evaluation that it comes from; of a map, the images it was fitted on."""
    network: nn.Module | None = None
    """Of a fine-tuned classifier: the network that was trained with it, in place of the run's own."""
    beside: Width | None = None
    """Of the full network's map: the width whose features it takes before those of the network itself."""

    @property
    def name(self) -> str:
        """What tells its files from others."""
        if self.classes is None:
            return SHARED
        return f"{'finetuned' if self.network else 'probe'}-{slug(self.data)}"

    def encoder(self, width: Width, build: Callable[[Width], nn.Module]) -> nn.Module:
        """The network whose features it takes.

        Args:
            width: Of the network that it belongs to.
            build: Makes the network of a width.
        """
        own = self.network or build(width)
        return own if self.beside is None else NarrowAndFull(build(self.beside), own)

    def on(self, encoder: nn.Module) -> nn.Module:
        """A network from images to what the head makes of them.

        Args:
            encoder: See `encoder`.
        """
        return (Embedder if isinstance(encoder, NarrowAndFull) else Classifier)(encoder, self.probe).eval()


class NarrowAndFull(nn.Module):
    """Two networks that look at the same images: the features of the first, then those of the second."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first: nn.Module = first
        self.second: nn.Module = second

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.first(images), self.second(images)], dim=1)


class Classifier(nn.Module):
    """A network and its head: logits."""

    def __init__(self, network: nn.Module, probe: Probe) -> None:
        super().__init__()
        self.network = network
        classes, features = probe.weight.shape
        self.head = nn.Linear(features, classes)
        with torch.no_grad():
            self.head.weight.copy_(probe.weight)
            self.head.bias.copy_(probe.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.network(images))


class Embedder(Classifier):
    """The full network together with the narrowest one, in the space that all widths share."""

    network: NarrowAndFull

    def forward(self, images: Tensor) -> Tensor:
        narrow = self.network.first(images)
        values = self.head(torch.cat([narrow, self.network.second(images)], dim=1))
        return with_even_parts(values, narrow.shape[1])


def find_heads(run: Run, net: Slimmable, name: str | None = None) -> dict[Width, Head]:
    """The classifiers of a run by canonical width, learned on the data of that name, or on the only one there is."""
    known = list_probes(run)
    if not known:
        raise UserError(f"{run.folder} has no classifiers: evaluate it on labelled data, which learns them")
    name = choose_evaluation(run, known, name, "classifiers for", "head")
    probes = read_probes(run, name)
    return {
        net.canonical(width): Head(
            calibrated(weight, bias, probes.temperatures.get(width), probes.thresholds.get(width)),
            probes.classes or [str(number) for number in range(len(bias))],
            name,
        )
        for width, (weight, bias) in probes.linear.items()
    }


def calibrated(weight: Tensor, bias: Tensor, temperature: float | None, threshold: float | None) -> Probe:
    """Return a classifier whose softmax gives probabilities that were calibrated on held-out labels, if they were."""
    warmth = 1.0 if temperature is None else temperature
    return Probe(weight / warmth, bias / warmth, temperature=temperature, threshold=threshold)


def classifier_heads(run: Run, net: Slimmable, widths: Sequence[Width]) -> dict[Width, Head]:
    """The classifier that a run was trained with, for each of these widths."""
    found, size = read_classifier(run), Preprocessing.of(net).size
    counts = {width: feature_count(net.skeleton(width), size) for width in widths}
    return {
        width: Head(Probe(*found.at(count)), found.classes, f"{found.data}-classifier")
        for width, count in counts.items()
    }


def finetuned_head(run: Run, net: Slimmable, width: Width, name: str | None = None) -> Head:
    """The network and classifier that fine-tuning made of a width, on the data of that name or the only one."""
    kept = find_finetuned(run, net, width, name)
    network, linear = finetuned_network(run, net, width, name).children()
    assert isinstance(linear, nn.Linear)
    return Head(Probe(linear.weight.detach(), linear.bias.detach()), kept.classes, kept.data, network)


def heads_of(run: Run, net: Slimmable, widths: Sequence[Width], name: str) -> dict[Width, Head]:
    """The classifier of each width."""
    kind, _, data = name.partition(":")
    if kind == "finetuned":
        return {width: finetuned_head(run, net, width, data or None) for width in widths}
    if kind == "classifier":
        return classifier_heads(run, net, widths)
    known = find_heads(run, net, None if name == "probe" else name)
    if missing := [width for width in widths if net.canonical(width) not in known]:
        learned_on = next(iter(known.values())).data
        raise UserError(f"{run.folder} has no classifier for width {missing[0]:g}: evaluate that width on {learned_on}")
    return {width: known[net.canonical(width)] for width in widths}
