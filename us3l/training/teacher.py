"""Frozen teachers: pretrained networks, each of which sees a run's views in its own way."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.data.view_settings import Channels
from us3l.objective.heads import projector
from us3l.run import Run
from us3l.storage import check_same, copy_weights, read_tensors, shapes_of, write_tensors
from us3l.system.errors import UserError, told
from us3l.training.initial import Init, open_pretrained
from us3l.training.recipes import Recipe


@torch.no_grad()
def save_projector(path: Path, head: nn.Sequential, features: Tensor) -> None:
    """Keep a projector with the statistics of its batch norms, which are those on these features."""
    kept = {name: parameter.detach() for name, parameter in head.named_parameters()}
    x = features
    for number, layer in enumerate(head):
        if isinstance(layer, nn.BatchNorm1d):
            kept[f"{number}.running_mean"], kept[f"{number}.running_var"] = x.mean(0), x.var(0)
        x = layer(x.clone())  # ReLUs work in place
    write_tensors(path, kept)


class OwnWay(nn.Module):
    """A network that looks at a run's views in its own way: at another size, or normalised by other numbers."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, size: int | None, recipe: Recipe, mean: Channels, std: Channels) -> None:
        super().__init__()
        self.network, self.size = network, size
        ours, theirs = (torch.tensor(pair).view(2, 3, 1, 1) for pair in ((recipe.mean, recipe.std), (mean, std)))
        self.register_buffer("scale", ours[1] / theirs[1], persistent=False)
        self.register_buffer("shift", (ours[0] - theirs[0]) / theirs[1], persistent=False)

    def forward(self, views: Tensor) -> Tensor:
        if self.size is not None and self.size != views.shape[-1]:
            views = F.interpolate(views, (self.size, self.size), mode="bilinear", antialias=True)
        return self.network(views * self.scale + self.shift)


def open_teacher(recipe: Recipe, given: Init | None = None) -> nn.Module:
    """The pretrained network that a recipe names as its teacher, as a module from a run's views to vectors.

    SEED's is followed by the projector of its run, where there is one.

    Args:
        recipe: Its views are what the teacher is shown.
        given: The teacher, if the recipe cannot name it.

    Raises:
        UserError: There is no such network, or it does not turn images into vectors.
    """
    assert recipe.teacher is not None
    if given is None and recipe.teacher.startswith("<"):
        raise UserError(f"this run imitates a network in memory, {recipe.teacher}: give it again, teacher=...")
    source = open_pretrained(recipe.teacher if given is None else given)
    network = source.network().eval()
    size = recipe.teacher_size or only_size(network)
    if recipe.objective.frozen_teacher and (head := projector_of(recipe.teacher)):
        network = nn.Sequential(network, head).eval()
    if size not in (None, recipe.views.size) or (source.mean, source.std) != (recipe.mean, recipe.std):
        network = OwnWay(network, size, recipe, source.mean, source.std).eval()
    check_vectors(network, recipe.views.size, "teacher", source.name, "teacher_size")
    return network


def only_size(teacher: nn.Module) -> int | None:
    """The only side of images that a network takes, as ViTs say it, ours and those of torchvision and timm."""
    size = vars(teacher).get("image_size") or getattr(getattr(teacher, "patch_embed", None), "img_size", None)
    size = size[0] if isinstance(size, tuple) else size
    return size if isinstance(size, int) else None


@torch.no_grad()
def check_vectors(network: nn.Module, size: int, role: str, name: str, setting: str, device: str = "cpu") -> None:
    """That somebody's network makes a vector of each image.

    Args:
        network: The network.
        size: Side of the images.
        role: What it is to the run, "teacher" or "network".
        name: Its name.
        setting: What decides about the size.
        device: Where it lies; "meta" computes nothing.
    """
    try:
        found = network(torch.zeros(2, 3, size, size, device=device))
    except Exception as error:  # networks of others raise errors of many kinds
        raise UserError(
            f"the {role} {name} cannot look at images of {size} pixels ({told(error)}): set `{setting}`, or fix it"
        ) from error
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2 or not found.is_floating_point():
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UserError(f"a {role} makes a vector of each image, but of two images {name} makes {what}")


def projector_of(path: str) -> nn.Module | None:
    """That of a run, if it keeps one."""
    run = Run(path)
    if run.projector.exists():
        return read_projector(read_tensors(run.projector), str(run.projector))
    if run.started and not run.finished:
        raise UserError(
            f"{path} has lost its projector: `us3l.pretrain(out={str(path)!r}, resume=True)` makes it again"
        )
    return None


def read_projector(tensors: dict[str, Tensor], name: str) -> nn.Sequential:
    try:
        (hidden, features), dim = tensors["0.weight"].shape, len(tensors["6.bias"])
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{name} does not hold a projector of us3l") from None
    head = projector(features, hidden, dim, final_norm="7.running_mean" in tensors)
    for layer in head:
        if isinstance(layer, nn.BatchNorm1d):
            for statistic in ("running_mean", "running_var"):
                layer.register_buffer(statistic, torch.zeros(layer.num_features))
            layer.track_running_stats = True
    own = head.state_dict()
    check_same(f"{name} does not hold a projector of us3l", tensors, shapes_of(own))
    copy_weights(tensors, own)
    return head
