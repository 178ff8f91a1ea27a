"""Pretrained networks of a file, a library, a folder or in memory: where a run begins, or what it imitates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from us3l.data.preprocessing import Channels, Preprocessing
from us3l.data.view_settings import MEAN, STD
from us3l.families import create, options_for, recognise
from us3l.hub import local_folder, silence
from us3l.slimmable import Slimmable
from us3l.storage import load, load_plain, read_tensors, read_torch, shapes_of
from us3l.system.errors import UserError, did_you_mean
from us3l.system.files import check_regular, expanded
from us3l.system.optional import need
from us3l.tensors import digest, tensors_of
from us3l.training.run_config import RunConfig

Init = str | Path | nn.Module
"""A state dict's file, `torchvision:NAME`, `timm:NAME`, the folder of a run or a model, `builtin`, `hf:USER/NAME` (a
model of ours on the Hugging Face Hub), or a network in memory."""
INSIDE = ("state_dict", "model")  # where training programs put the state dict in what they save
KINDS = (
    "a .safetensors or .pth file, torchvision:NAME, timm:NAME, builtin, hf:USER/NAME, or the folder of a run or model"
)


@dataclass(frozen=True)
class Pretrained:
    """A plain pretrained network, as the start of a run or as its teacher."""

    name: str
    """As it was given."""
    state: Mapping[str, Tensor] = field(repr=False)
    mean: Channels = MEAN
    std: Channels = STD
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the network that the shapes of tensors do not tell."""
    in_order: bool = False
    """Whether its leading channels are sub-networks already: it is slimmable."""
    build: Callable[[], nn.Module] | None = field(default=None, repr=False)
    """Makes the network itself, without its classifier; of a state dict alone, it must be one of ours."""

    def __post_init__(self) -> None:
        for name, tensor in self.state.items():
            if not tensor.isfinite().all():
                raise UserError(f"{self.name}: {name} holds values that are not finite")

    @cached_property
    def sha256(self) -> str:
        """Of its tensors: see `us3l.tensors.digest`."""
        return digest(self.state)

    def configure(self, config: RunConfig) -> RunConfig:
        """Return a run's settings with this start: its network, if it is one of ours, and its normalisation."""
        network = recognise(shapes_of(self.state)) or {}
        if network:
            network = {"stem": "imagenet", **network, **self.options}
        recipe = replace(
            config.recipe,
            init=self.name,
            mean=self.mean,
            std=self.std,
            network=replace(config.recipe.network, **network),
        )
        return replace(config, recipe=recipe)

    def network(self) -> nn.Module:
        """Return the plain network: from images to features.

        Raises:
            UserError: It is a state dict of a network that is none of ours.
        """
        if self.build is not None:
            return self.build()
        network = recognise(shapes_of(self.state))
        if network is None:
            raise UserError(f"{self.name} holds weights of a network that us3l does not know: give {KINDS}")
        options = {"stem": "imagenet", **network}
        name, stem = options.pop("backbone"), options.pop("stem")
        net = create(name, **options_for(name, stem, self.image_size(network)) | options)
        self.put_into(net)
        if not net.calibrated(1.0):
            raise UserError(f"{self.name} has no batch-norm statistics, so it cannot teach")
        return net.carve(1.0)

    def image_size(self, network: Mapping[str, Any]) -> int:
        """Return the side of the images that a network of ours was made for, as its positions tell, if it has any."""
        sides = [shape[1] for name, shape in shapes_of(self.state).items() if "pos_embed" in name]
        return int(sides[0] ** 0.5) * network["patch"] if sides else 224

    def put_into(self, net: Slimmable) -> None:
        """Give a network these weights at width 1, with their batch-norm statistics, if there are any.

        Args:
            net: Of the same shapes; a classifier that it does not have is left out.

        Raises:
            UserError: They do not fit; the message names tensors and their shapes.
        """
        family, tensors = net.family, tensors_of(net.full)
        state = {family.translate(name): tensor for name, tensor in self.state.items()}
        if family.classifier is not None:
            state = {k: v for k, v in state.items() if k in tensors or not k.startswith(f"{family.classifier}.")}
        try:
            load_plain(net, state)
        except UserError as error:
            raise UserError(
                f"{self.name} cannot be the start of {family.name}: {error}; choose the network (`backbone`, `base`, "
                "`stem`, `size`) that the weights are of"
            ) from None


def open_pretrained(init: Init, family: Callable[[Any], nn.Module] | None = None) -> Pretrained:
    """Open the pretrained network that a person names or gives.

    Args:
        init: See `Init`.
        family: Of a model that is a network of the user's own.

    Raises:
        UserError: There is none, it cannot be read or fetched, or reading it would run code.
    """
    if isinstance(init, Slimmable):
        return from_slimmable(name_in_memory(init), init)
    if isinstance(init, nn.Module):
        return from_module(name_in_memory(init), init)
    library, colon, name = str(init).partition(":")
    if colon and library in LIBRARIES:
        return LIBRARIES[library](str(init), name)
    path = expanded(local_folder(init))
    if path.is_dir():
        return from_slimmable(str(init), load(path, family))
    if not path.exists():
        raise UserError(f"there is no {str(init)!r} to start from: give {KINDS}")
    return Pretrained(str(init), read_state(path))


def name_in_memory(network: Init) -> str:
    """Return what to call a network in memory."""
    return f"<{network.family.name if isinstance(network, Slimmable) else type(network).__name__}>"


def from_slimmable(name: str, net: Slimmable) -> Pretrained:
    state = net.carve(1.0).state_dict() if net.calibrated(1.0) else tensors_of(net.full)
    seen, options = Preprocessing.of(net), net.family.describe()["options"]
    hidden = {key: options[key] for key in ("stem", "heads") if options.get(key) is not None}
    return Pretrained(name, state, seen.mean, seen.std, hidden, net.min_width < 1, lambda: calibrated(name, net))


def calibrated(name: str, net: Slimmable) -> nn.Module:
    """Return the full network of a model."""
    if not net.calibrated(1.0):
        raise UserError(f"the teacher in {name} is not calibrated at width 1: us3l.calibrate and save it again")
    return net.carve(1.0)


def from_module(name: str, module: nn.Module) -> Pretrained:
    """Return a network in memory as a pretrained one; those of timm say how they want their images."""
    settings = getattr(module, "pretrained_cfg", None) or {}
    mean, std = (tuple(settings.get(key) or usual) for key, usual in (("mean", MEAN), ("std", STD)))
    return Pretrained(name, module.state_dict(), mean, std, build=lambda: copy.deepcopy(module))


def without_classifier(network: nn.Module) -> nn.Module:
    """Return a network of a library without its last linear layer, so that it gives features instead of logits."""
    last = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)][-1:]
    for name in last:
        network.set_submodule(name, nn.Identity())
    return network


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a file. Nothing in it is run."""
    if path.suffix == ".safetensors":
        return read_tensors(path, whole_numbers=True)
    try:
        state = read_torch(check_regular(path))
    except UserError:
        raise
    except Exception as error:  # torch raises errors of many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read {path}: {reason}; save the state dict as .safetensors") from None
    if isinstance(state, dict):
        state = next((state[key] for key in INSIDE if isinstance(state.get(key), dict)), state)
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold a state dict: tensors by their names")
    return {str(name): tensor for name, tensor in state.items()}


def from_torchvision(spec: str, name: str) -> Pretrained:
    from torchvision import models

    if name not in models.list_models():
        raise UserError(f"torchvision has no network {name!r}: {did_you_mean(name, models.list_models())}")
    weights = models.get_model_weights(name).DEFAULT
    seen = weights.transforms()
    state = fetched(spec, lambda: weights.get_state_dict(progress=False, check_hash=True, weights_only=True))

    def build() -> nn.Module:
        network = models.get_model(name)
        network.load_state_dict(state)
        return without_classifier(network)

    return Pretrained(spec, state, tuple(seen.mean), tuple(seen.std), build=build)


def from_timm(spec: str, name: str) -> Pretrained:
    silence()  # timm fetches from the Hugging Face Hub
    timm = need("timm", spec)
    if not timm.is_model(name.partition(".")[0]):
        raise UserError(f"timm has no network {name!r}: {did_you_mean(name, timm.list_models())}")
    if not timm.is_model_pretrained(name):
        raise UserError(f"timm has no weights for {name!r}: choose another network, or give a file of them")
    network = fetched(spec, lambda: timm.create_model(name, pretrained=True))
    return replace(from_module(spec, network), build=lambda: without_classifier(copy.deepcopy(network)))


LIBRARIES = {"torchvision": from_torchvision, "timm": from_timm}


def fetched(spec: str, fetch: Callable[[], Any]) -> Any:
    """Return what a library fetches, or keeps from the last time."""
    try:
        return fetch()
    except Exception as error:  # libraries raise errors of many kinds when there is no network
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"cannot fetch the weights of {spec} ({reason:.200}): connect to the internet, or give a file of them"
        ) from None
