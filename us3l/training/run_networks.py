"""The networks of a run before its first step: the one that it trains, and the pretrained one that it imitates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.data.view_settings import Channels
from us3l.families import family, one_or_all, options_for
from us3l.families.family import Family
from us3l.objective.heads import read_projector
from us3l.run import Run
from us3l.slimmable import Slimmable
from us3l.sorting import sort_channels
from us3l.storage import copy_weights, read_tensors
from us3l.system.errors import UserError, brief
from us3l.tensors import tensors_of
from us3l.training.initial import Init, Pretrained, open_pretrained
from us3l.training.recipes import SOURCE, Recipe


@dataclass(frozen=True)
class RunNetworks:
    """What a run trains and what it imitates."""

    net: Slimmable
    pretrained_teacher: nn.Module | None
    """From a run's views to vectors; None if the run imitates none."""
    random_state: Tensor
    """That of torch's generator once `net` was made: projector and heads are drawn from it."""


def new_networks(
    recipe: Recipe, user_family: Family | None = None, source: Pretrained | None = None, teacher: Init | None = None
) -> RunNetworks:
    """Make the networks of a run.

    Args:
        recipe: What says which they are.
        user_family: The family, if it is one of the user's own.
        source: The pretrained network that the run begins with, if any.
        teacher: The pretrained network that it imitates, if the recipe cannot name it.

    Raises:
        UserError: The source does not fit the network, or the teacher cannot teach.
    """
    net = new_network(recipe, user_family, source)
    random_state = torch.get_rng_state()
    net.skeleton(net.min_width)  # whether the narrowest can be made is seen before any image is read
    return RunNetworks(net, new_teacher(recipe, user_family, source, teacher, net), random_state)


def new_network(recipe: Recipe, user_family: Family | None = None, source: Pretrained | None = None) -> Slimmable:
    """Make the network that a run trains; the seed decides its weights, or the source does.

    Args:
        recipe: What says which network.
        user_family: The family, if it is one of the user's own.
        source: The pretrained network that it starts from, if any; its channels are put in order.
    """
    network = recipe.resolved().network
    switchable = recipe.objective.fixed_widths if network.switchable else None
    if network.switchable and switchable is None:
        raise UserError("switchable batch norm needs a list of widths: `fixed_widths`")
    if user_family is None and network.user_defined:
        raise UserError(
            f"this run trains a network of your own, {network.backbone}: give it again, network=... or `backbone=WHAT`"
        )
    torch.manual_seed(recipe.seed)
    chosen = user_family or backbone(recipe)
    net = one_or_all(chosen, network.min_width, switchable, network.individual)
    for width in recipe.objective.fixed_widths or ():
        net.check(width)
    if recipe.objective.mixed and not (net.family.stages or net.family.blocks):
        raise UserError(f"mixed sub-networks have a width for each stage, and {net.family.name} has no stages")
    if source is not None and network.individual is not None:  # which begins with its part of the pretrained network
        copy_weights(at_all_widths(recipe, chosen, source).shared_slices(network.individual), tensors_of(net.full))
    elif source is not None:
        put_in_order(source, net)
    return net


def at_all_widths(recipe: Recipe, chosen: Family, source: Pretrained) -> Slimmable:
    """Return a pretrained network with its channels in order, at every width that a recipe may mean."""
    network = recipe.network
    return put_in_order(source, Slimmable(chosen, min(network.min_width, network.individual or 1.0)))


def put_in_order(source: Pretrained, net: Slimmable) -> Slimmable:
    """Give a network the weights of a pretrained one, with its channels in order of importance."""
    source.put_into(net)
    if not source.in_order:
        sort_channels(net)
    return net


def new_teacher(
    recipe: Recipe,
    user_family: Family | None = None,
    source: Pretrained | None = None,
    teacher: Init | None = None,
    started: Slimmable | None = None,
) -> nn.Module | None:
    """Return the pretrained teacher of a recipe, as a module from a run's views to vectors; None: there is none.

    Args:
        recipe: What names it.
        user_family: The family, if it is one of the user's own.
        source: What the run begins with. Without it, as when a run is resumed, a teacher that is the same network
            has the right layers only: its weights are in the checkpoint.
        teacher: The teacher, if the recipe cannot name it.
        started: The network that has begun with the source, if it is there already.
    """
    recipe = recipe.resolved()
    if recipe.teacher is None or not recipe.objective.needs_pretrained_teacher:
        return None
    with torch.random.fork_rng(devices=[]):
        if recipe.teacher != SOURCE:
            return open_teacher(recipe, teacher)
        chosen = user_family or backbone(recipe)
        if source is None:
            return as_teacher(chosen(1.0), recipe, recipe.mean, recipe.std, SOURCE)
        whole = recipe.network.individual is None and not recipe.network.switchable
        net = started if whole and started is not None else at_all_widths(recipe, chosen, source)
        if not net.calibrated(1.0):
            raise UserError(f"{source.name} has no batch-norm statistics, so it cannot teach: give another `teacher`")
        return as_teacher(net.carve(1.0), recipe, recipe.mean, recipe.std, source.name)


def backbone(recipe: Recipe) -> Family:
    """Return the family that a recipe names, with its options."""
    network = recipe.resolved().network
    chosen = {"patch": network.patch, "heads": network.heads, "depth": network.depth}
    options = options_for(network.backbone, network.stem, recipe.views.size, network.frozen_patches)
    options |= {name: value for name, value in chosen.items() if value is not None}
    return family(network.backbone, base=network.base, **options)


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
            f"the {role} {name} cannot look at images of {size} pixels ({brief(error)}): set `{setting}`, or fix it"
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
