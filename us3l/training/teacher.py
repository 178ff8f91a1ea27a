"""Pretrained teachers, each of which sees a run's views as it was trained to; and the projectors that SEED needs."""

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


class TeacherView(nn.Module):
    """A network that sees a run's views at another size, or normalised by other numbers."""

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


def open_teacher(recipe: Recipe, teacher: Init | None = None) -> nn.Module:
    """Open the pretrained network that a recipe names as its teacher, as a module from a run's views to vectors.

    SEED's is followed by the projector of its run, where there is one.

    Args:
        recipe: Its views are what the teacher is shown.
        teacher: The teacher, if the recipe cannot name it.

    Raises:
        UserError: There is no such network, or it does not turn images into vectors.
    """
    assert recipe.teacher is not None
    if teacher is None and recipe.teacher.startswith("<"):
        raise UserError(f"this run imitates a network in memory, {recipe.teacher}: give it again, teacher=...")
    source = open_pretrained(recipe.teacher if teacher is None else teacher)
    head = projector_of(recipe.teacher) if recipe.objective.imitates_by_base_loss else None
    return as_teacher(source.network(), recipe, source.mean, source.std, source.name, head)


def as_teacher(
    network: nn.Module, recipe: Recipe, mean: Channels, std: Channels, name: str, head: nn.Module | None = None
) -> nn.Module:
    """Return a network as a module from a run's views to vectors.

    Args:
        network: From images to features.
        recipe: Its views are what the teacher is shown, at its `teacher_size`.
        mean: By which the teacher's images are normalised.
        std: Likewise.
        name: What to call it.
        head: What follows it, if anything.

    Raises:
        UserError: It does not turn images of this size into vectors.
    """
    size = recipe.teacher_size or only_size(network)
    teacher = (network if head is None else nn.Sequential(network, head)).eval()
    if size not in (None, recipe.views.size) or (mean, std) != (recipe.mean, recipe.std):
        teacher = TeacherView(teacher, size, recipe, mean, std).eval()
    check_vectors(teacher, recipe.views.size, "teacher", name, "teacher_size")
    return teacher


def only_size(teacher: nn.Module) -> int | None:
    """Return the only side of images that a network takes, as ViTs say it, ours and those of torchvision and timm."""
    size = vars(teacher).get("image_size") or getattr(getattr(teacher, "patch_embed", None), "img_size", None)
    size = size[0] if isinstance(size, tuple) else size
    return size if isinstance(size, int) else None


@torch.no_grad()
def check_vectors(network: nn.Module, size: int, role: str, name: str, setting: str, device: str = "cpu") -> None:
    """Raise if somebody's network does not make a vector of each image.

    Args:
        network: The network.
        size: Side of the images.
        role: What it is to the run, "teacher" or "network".
        name: Its name.
        setting: What decides about the size.
        device: Where it lies; "meta" computes nothing.
    """
    try:
        vectors = network(torch.zeros(2, 3, size, size, device=device))
    except Exception as error:  # networks of others raise errors of many kinds
        raise UserError(
            f"the {role} {name} cannot look at images of {size} pixels ({told(error)}): set `{setting}`, or fix it"
        ) from error
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != 2 or not vectors.is_floating_point():
        what = (
            f"a tensor of shape {tuple(vectors.shape)}"
            if isinstance(vectors, Tensor)
            else f"a {type(vectors).__name__}"
        )
        raise UserError(f"a {role} makes a vector of each image, but of two images {name} makes {what}")


def projector_of(path: str) -> nn.Module | None:
    """Return that of a run, if it keeps one."""
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
    state = head.state_dict()
    check_same(f"{name} does not hold a projector of us3l", tensors, shapes_of(state))
    copy_weights(tensors, state)
    return head
