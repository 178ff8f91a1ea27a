"""Recipes: everything that decides what a run learns, as frozen values with names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from us3l.data.view_settings import MEAN, STD, Channels, Views
from us3l.families import BACKBONES
from us3l.objective.methods import method
from us3l.objective.spec import Objective, memory
from us3l.system.errors import UserError, did_you_mean

AUTO = "auto"
"""In the place of a recipe's name: choose what fits the images and the computer (`us3l.training.auto`)."""
BEST = "us3l-plus"
"""The method of such a run; recipes by name are for the paper's own, unless they say otherwise."""
SOURCE = "init"
"""In the place of a teacher's name: the pretrained network that the run begins with."""
SMALL = 64  # pixels: images up to this side get the stem for small ones


@dataclass(frozen=True)
class Network:
    backbone: str = "resnet18"
    """Which family of networks, see us3l backbones; or MODULE:NAME for one of your own: a function in a module that
    Python can import, from a width to a network."""
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    """First layers: for images of up to 64 pixels ("cifar"), or for larger ones ("imagenet"); "auto" goes by size."""
    base: int = 64
    """Channels of the first stage at width 1 (64 in the paper; 16 makes a network for CPUs)."""
    min_width: float = 0.25
    """The narrowest width."""
    individual: float | None = None
    """Train the network of this width alone, as a baseline."""
    switchable: bool = False
    """Give each of the --fixed-widths batch-norm weights of its own (S-Net)."""
    patch: int | None = None
    """Side of a ViT's patches in pixels (default: 4 with the stem "cifar", else 16)."""
    heads: int | None = None
    """A ViT's attention heads (default: 3 for Tiny, 6 for Small; the paper has 6 and 12)."""
    depth: int | None = None
    """A ViT's blocks (default: 12)."""
    frozen_patches: bool = True
    """Keep a ViT's patch embedding at its random first weights, as MoCo v3 and the paper do."""

    def __post_init__(self) -> None:
        if self.backbone not in BACKBONES and not self.user_defined:
            raise UserError(f"unknown backbone {self.backbone!r}: {did_you_mean(self.backbone, BACKBONES)}")

    @property
    def user_defined(self) -> bool:
        """Whether it is a network of the user's own."""
        return ":" in self.backbone


@dataclass(frozen=True)
class Optimiser:
    """The learning rate rises in the warm-up and then falls to zero along a cosine."""

    algorithm: Literal["sgd", "lars", "adamw"] = "sgd"
    """SGD with momentum, LARS, or AdamW."""
    lr: float = 0.5
    """Learning rate at its highest."""
    warmup: float = 0.0
    """Epochs in which the learning rate rises to its highest."""
    momentum: float = 0.9
    """Momentum of SGD and LARS, first beta of AdamW."""
    weight_decay: float = 1e-4
    """Weight decay of the first group of channels."""

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(get_type_hints(Optimiser)["algorithm"]) or self.warmup < 0:
            raise UserError(
                f"algorithm={self.algorithm!r} must be sgd, lars or adamw, and warmup={self.warmup} not negative"
            )
        if not (self.lr > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise UserError(
                f"lr={self.lr} must be positive, momentum={self.momentum} from 0 to below 1, "
                f"and weight_decay={self.weight_decay} not negative"
            )


class Factors(NamedTuple):
    """What a base loss other than InfoNCE needs."""

    lr: float = 1.0
    weight_decay: float = 1.0
    epochs: float = 1.0


FACTORS = {
    "mse": Factors(1 / 5, 5),  # SimSiam and BYOL in `appendix-details`
    "moco": Factors(1 / 8),  # MoCo's own 0.03 for a batch of 256
    "cross-entropy": Factors(1 / 5, 5, 1 / 2),  # as is usual on CIFAR; the paper does not say
    "seed": Factors(1 / 10, epochs=1 / 2),  # the authors' code: 0.05, 1e-4, 200 epochs
    "seed-mse": Factors(1 / 10, 5),  # the authors' code: 0.05, 5e-4, 400 epochs
}
"""Learning rate, weight decay and epochs of the paper's baselines, as factors of those of its InfoNCE methods."""
RESNET50 = FACTORS | dict.fromkeys(("seed", "seed-mse"), Factors(1 / 5, 5))  # the authors' code: 0.05, 5e-4, 400 epochs


CROPS_AND_FLIPS: dict[str, Any] = {
    "jitter": 0.0, "grey": 0.0, "blur": 0.0, "second_blur": None, "solarise": 0.0, "second_solarise": None
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    network: Network = field(default_factory=Network)
    objective: Objective = field(default_factory=Objective)
    views: Views = field(default_factory=Views)
    optimiser: Optimiser = field(default_factory=Optimiser)
    epochs: int = 400
    """Passes over the images."""
    batch_size: int = 512
    """Images in a batch, over all devices."""
    init: str | None = None
    """Start from a pretrained network: a .safetensors or .pth file of its weights, torchvision:NAME or timm:NAME, or
    the folder of a run or a model. It decides --backbone, --base, --stem, --mean and --std, unless these are given."""
    teacher: str | None = None
    """A pretrained network to imitate, by the methods imitate, us3l-imitate, seed and seed-mse: what --init takes, or
    "init" for the same network (the default where a run has an --init)."""
    teacher_size: int | None = None
    """Side in pixels to which views are resized for the teacher (default: they stay, unless it takes one size only)."""
    max_steps: int | None = None
    """Stop after this many steps; all schedules are shortened to that."""
    images: int | None = None
    """Use only this many of the images."""
    validation: bool = False
    """Hold a fixed tenth of each class out of the training, as validation images: see us3l evaluate --split."""
    mean: Channels = MEAN
    """Of red, green and blue, for pixels from 0 to 1: what is taken from them."""
    std: Channels = STD
    """What they are divided by then."""
    seed: int = 0
    """Decides the first weights, the order of the images, the views and the widths."""
    follow_base_loss: bool = True
    """Let another base loss change learning rate, weight decay and epochs, as in the paper's settings for CIFAR."""
    calibration: int = 2048
    """Training images on which batch-norm statistics are collected at the end."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "max_steps", "images", "calibration", "teacher_size"):
            value = getattr(self, name)
            if value is not None and value < (2 if name in ("batch_size", "calibration") else 1):
                raise UserError(f"{name}={value} is too small")

    @property
    def sub_views(self) -> Views | None:
        """How the views are made that sub-networks alone see, if there are such."""
        views, objective = self.views, self.objective
        if objective.sub_crop is None:
            return None
        scale = objective.sub_crop, max(objective.sub_crop, views.crop_scale[1])
        return replace(views, crop_scale=scale)

    def resolved(self) -> Recipe:
        """Return this recipe with what depends on its other settings: the stem and the teacher."""
        stem, teacher = self.network.stem, self.teacher
        if stem == "auto":
            stem = "cifar" if self.views.size <= SMALL else "imagenet"
        if teacher is None and self.init is not None and self.objective.teacher_shares:
            teacher = SOURCE
        return replace(self, network=replace(self.network, stem=stem), teacher=teacher)

    def with_method(self, name: str) -> Recipe:
        """Return this recipe for another method.

        Args:
            name: One that `us3l recipes` prints, such as "us-simsiam".
        """
        chosen = method(name)
        return replace(self.with_objective(**chosen.objective), network=replace(self.network, **chosen.network))

    def with_objective(self, **changes: Any) -> Recipe:
        """Return this recipe for another objective, and with what its base loss needs: see `tuned_for`.

        Args:
            changes: Fields of `Objective` by name, such as `base_loss="mse"`.
        """
        objective = replace(self.objective, **changes)
        return replace(self.tuned_for(objective.base_loss), objective=objective)

    def tuned_for(self, base_loss: str) -> Recipe:
        """Return this recipe with the learning rate, weight decay, epochs and views of a base loss: see `FACTORS`.

        Supervised learning sees crops and flips only.

        Args:
            base_loss: The base loss to come. The objective stays as it is.
        """
        factors = RESNET50 if self.network.backbone == "resnet50" else FACTORS
        factors = factors if self.follow_base_loss else {}
        old, new = (factors.get(name, Factors()) for name in (self.objective.base_loss, base_loss))
        supervised = base_loss == "cross-entropy"
        return replace(
            self,
            optimiser=replace(
                self.optimiser,
                lr=times(self.optimiser.lr, new.lr / old.lr),
                weight_decay=times(self.optimiser.weight_decay, new.weight_decay / old.weight_decay),
            ),
            epochs=max(1, round(self.epochs * (new.epochs / old.epochs))),
            views=replace(self.views, **CROPS_AND_FLIPS) if supervised else self.views,
        )


def times(value: float, factor: float) -> float:
    """Return a product as people write it: 0.1 * 0.4 is 0.04."""
    return float(f"{value * factor:.6g}")


def mini(recipe: Recipe, images: int = 50_000) -> Recipe:
    """Return the twin of a recipe that two cores can train: a quarter of the channels, small heads, few epochs.

    Its teacher's memory is the same share of the run: see `us3l.objective.spec.memory`.

    Args:
        recipe: One of the paper's.
        images: On which the paper trains by it.
    """
    sizes: dict[str, Any] = {"hidden": 512, "predictor": 512, "dim": 128, "temperature": 0.2, "queue": 2048}
    if recipe.objective.teacher_momentum is not None:
        share = memory(recipe.objective.teacher_momentum, recipe.epochs * (images // recipe.batch_size))
        sizes |= {"teacher_momentum": None, "teacher_memory": share}
    return replace(
        recipe,
        network=replace(recipe.network, base=16),
        objective=replace(recipe.objective, **sizes),
        optimiser=replace(recipe.optimiser, lr=times(recipe.optimiser.lr, 0.4), warmup=recipe.optimiser.warmup / 20),
        epochs=15,
        batch_size=128,
    )


CIFAR = Recipe()
CIFAR_50 = replace(CIFAR, network=Network("resnet50"), optimiser=Optimiser(lr=0.25))
CIFAR_MOBILE = replace(CIFAR, network=Network("mobilenet_v2"))
IMAGENET = replace(
    CIFAR,
    network=Network(stem="imagenet"),
    views=Views(size=224, blur=0.5),
    objective=Objective(queue=65536),
    epochs=100,
    follow_base_loss=False,  # the paper has one learning rate and one weight decay for ImageNet
).with_method("us3l-byol")
IMAGENET_50 = replace(IMAGENET, network=replace(IMAGENET.network, backbone="resnet50"))
VIT = replace(
    CIFAR.with_method("us3l-mocov3"),
    network=Network("vit_tiny", stem="imagenet", heads=6),
    views=Views(224, (0.08, 1.0), saturation=0.2, blur=1.0, second_blur=0.1, second_solarise=0.2),  # MoCo v3's
    optimiser=Optimiser("adamw", lr=3e-4, warmup=40, weight_decay=0.1),
    epochs=300,
)
VIT = replace(VIT, objective=replace(VIT.objective, dim=256))
VIT_SMALL = replace(VIT, network=replace(VIT.network, backbone="vit_small", heads=12))
MINI = mini(CIFAR)
MINI_PHOTOS = replace(MINI, views=replace(IMAGENET.views, size=96), epochs=100)
PHOTOS = replace(
    CIFAR,
    views=IMAGENET.views,
    objective=replace(CIFAR.objective, teacher_momentum=None, teacher_memory=MINI.objective.teacher_memory),
    optimiser=Optimiser(lr=0.25),
    epochs=200,
    batch_size=256,
)
MINI_IMAGENET = replace(
    mini(IMAGENET, images=1_281_167),
    views=replace(IMAGENET.views, size=64),
    optimiser=MINI.with_method("us3l-byol").optimiser,  # ImageNet's is for 1.3 million images
    follow_base_loss=True,
)
MINI_VIT = replace(
    mini(VIT),
    network=Network("vit_tiny", base=32, heads=6, depth=6),
    views=CIFAR.views,
    optimiser=replace(VIT.optimiser, lr=1e-3, warmup=2),
)

SLIM = replace(
    CIFAR.with_method("imitate").with_objective(
        teacher_features=0.8, teacher_relations=0.2, samples=4, stratified=True, width_power=1.0, update="per-width"
    ),
    network=Network("mobilenet_v2", stem="imagenet"),
    views=Views(96, (0.2, 1.0), grey=0.0),
    optimiser=Optimiser("adamw", lr=3e-3, warmup=1, weight_decay=0.01),
    epochs=50,
    batch_size=64,
)

RECIPES: dict[str, tuple[Recipe, str]] = {
    "mini": (MINI, "a small ResNet-18 on 32-pixel images, for CPUs: the twin of cifar-resnet18"),
    "digits": (
        replace(
            MINI,
            views=Views(size=16, crop_scale=(0.4, 1.0), flip=0.0, grey=0.0, hue=0.0, saturation=0.0),
            epochs=30,
        ),
        "the demo: handwritten digits on a CPU, in minutes",
    ),
    "slim": (SLIM, "makes a pretrained network (`init`) slimmable, on photographs at 96 pixels, without labels"),
    "mini-photos": (MINI_PHOTOS, "a small ResNet-18 on photographs at 96 pixels, for CPUs: the twin of photos"),
    "photos": (PHOTOS, "a ResNet-18 on photographs at 224 pixels (a GPU job, not tried yet)"),
    "cifar-resnet18": (CIFAR, "the paper's ResNet-18 on CIFAR (a GPU job)"),
    "cifar-resnet50": (CIFAR_50, "the paper's ResNet-50 on CIFAR (a GPU job)"),
    "mini-cifar-resnet50": (mini(CIFAR_50), "its twin for CPUs"),
    "cifar-mobilenet": (CIFAR_MOBILE, "the paper's MobileNetV2 on CIFAR (a GPU job)"),
    "mini-cifar-mobilenet": (mini(CIFAR_MOBILE), "its twin for CPUs"),
    "imagenet-resnet18": (IMAGENET, "the paper's ResNet-18 on ImageNet (a GPU job)"),
    "mini-imagenet-resnet18": (MINI_IMAGENET, "its twin for CPUs, with images of 64 pixels"),
    "imagenet-resnet50": (IMAGENET_50, "the paper's ResNet-50 on ImageNet (a GPU job)"),
    "mini-imagenet-resnet50": (
        replace(MINI_IMAGENET, network=replace(MINI_IMAGENET.network, backbone="resnet50")),
        "its twin for CPUs, with images of 64 pixels",
    ),
    "cifar-vit-tiny": (VIT, "the paper's ViT-Tiny on CIFAR-10, enlarged to 224 pixels (a GPU job)"),
    "mini-cifar-vit-tiny": (MINI_VIT, "its twin for CPUs, with images of 32 pixels"),
    "cifar-vit-small": (VIT_SMALL, "the paper's ViT-Small on CIFAR-10, enlarged to 224 pixels (a GPU job)"),
    "mini-cifar-vit-small": (
        replace(MINI_VIT, network=replace(MINI_VIT.network, backbone="vit_small", heads=12)),
        "its twin for CPUs, with images of 32 pixels",
    ),
}


def twin(name: str) -> str:
    """Return the name of the recipe for CPUs that stands for one of the paper's.

    >>> twin("cifar-resnet18"), twin("cifar-vit-tiny")
    ('mini', 'mini-cifar-vit-tiny')
    """
    return "mini" if name == "cifar-resnet18" else f"mini-{name}"


def named(name: str) -> Recipe:
    """Return a recipe by its name.

    Args:
        name: One that `us3l recipes` prints.

    Returns:
        The recipe, which can be changed by `dataclasses.replace`.
    """
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}: {did_you_mean(name, RECIPES)}")
    return RECIPES[name][0]
