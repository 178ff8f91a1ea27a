"""What us3l asks of a family, with an answer for families that have none of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from us3l.system.errors import UserError
from us3l.system.optional import missing
from us3l.width import Width

if TYPE_CHECKING:
    from torch import nn

Stem = Literal["imagenet", "cifar"]


class Family:
    """Plain networks as a function of a width. Only calling it is needed; all else here has a default.

    A family of one's own may derive from this class, or be any function or object that can be called with a width:
    what it has of these names counts.
    """

    name: str = "network"
    """What to call it in messages and files."""
    stages: int | None = None
    """How many numbers a width may have, one for each stage; None: widths are single numbers."""
    blocks: tuple[int, ...] | None = None
    """The blocks of each stage, if all but the first may be left out; None: all networks have the same blocks.

    Then a width may be a `us3l.Width`, whose `depths` say how many blocks of each stage there are.
    """
    image_size: int | None = None
    """The only side of images, in pixels, that its networks take; None: any."""
    usual_size: int = 224
    """The side of the images that its networks are made for, where nothing else says it."""
    transformer: bool = False
    """Whether its networks are transformers, which have a probe and a way to INT8 of their own."""

    classifier: str | None = None
    """The module of pretrained networks that turns features into logits, which is left out where there is none."""

    def __call__(self, width: Any) -> nn.Module:
        """The plain network of a width."""
        raise NotImplementedError

    def signature(self, width: Any) -> Hashable | None:  # noqa: ARG002
        """Return a cheap summary of all shapes at a width; None: the network is built without memory to see them."""
        return None

    def segments(self, name: str) -> Sequence[int]:  # noqa: ARG002
        """Return the number of segments on each axis of a tensor, such as fused qkv; each is sliced on its own."""
        return ()

    def channels(self, name: str) -> Sequence[str | Sequence[str] | None]:  # noqa: ARG002
        """Return what to call the channels on each axis of a tensor; of an axis of several segments, those of each.

        Channels of the same name can only be put in another order together: what a layer gives and what those after it
        take, the streams that residual blocks add to, queries and keys of a head. None: the order is fixed.
        Names beyond a tensor's axes do not count. Without names all channels stay as they are: see `us3l.sorting`.
        """
        return ()

    def translate(self, name: str) -> str:
        """Return what a tensor of the same network by another library is called here, if it has another name there."""
        return name

    def chain(self, network: Any) -> Sequence[nn.Module]:
        """Return the modules that a network applies one after another, up to its last batch norm.

        Networks that begin alike are then calibrated together, and a search counts and times each module once.
        Modules on the same weights must compute the same.
        """
        return [network]

    def feature_maps(self, network: Any) -> tuple[nn.Module, Sequence[str]] | None:  # noqa: ARG002
        """Return the part of a network that makes maps, and the names of its modules whose outputs have four sizes.

        Detection builds its pyramid on them. None: there are no such maps.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Return what `model.json` says about it: a family of the user's own is only named, and must be given again."""
        return {"backbone": None, "options": {}, "family": type(self).__qualname__}


@contextmanager
def needs_timm(name: str) -> Iterator[None]:
    """Raise an error that says what to install if an import of timm fails."""
    try:
        yield
    except ImportError:
        raise missing("timm", name) from None


class Backbone(Family):
    """A family of ours, a dataclass of options: `create` builds it again from its name and these."""

    @classmethod
    def recognise(cls, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:  # noqa: ARG003
        """Return the name and options of the network whose width 1 has these shapes, None if it is not ours."""
        return None

    @classmethod
    def fit(cls, stem: str, size: int, frozen_patches: bool) -> dict[str, Any]:  # noqa: ARG003
        """Return the options that make it fit images of a size, which a stem is chosen for."""
        return {"stem": stem}

    def stagewise(self, width: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the width and the blocks of each stage; no blocks, if none can be left out."""
        blocks = self.blocks or ()
        width = Width(width)
        return width.widths * (self.stages or 1) if width.plain else width.widths, width.depths or blocks

    def describe(self) -> dict[str, Any]:
        options = dict(vars(self))
        return {"backbone": options.pop("name"), "options": options}


@dataclass(frozen=True)
class StagedBackbone(Backbone):
    """A convolutional network: a stem, then stages that a width and a number of blocks can be given for each."""

    name: str = ""
    stem: Stem = "imagenet"
    base: int = 64
    """All channels are in proportion to it; with 64 they are those of the original."""
    num_classes: int = 0

    def __post_init__(self) -> None:
        if self.stem not in get_args(Stem):
            raise UserError(f"unknown stem {self.stem!r}: choose {' or '.join(map(repr, get_args(Stem)))}")
        if self.base < 8:
            raise UserError(f"base={self.base} channels is too few: choose 8 or more (the paper has 64)")

    @property
    def usual_size(self) -> int:  # type: ignore[override]
        return 32 if self.stem == "cifar" else 224

    def signature(self, width: Any) -> tuple[int, ...]:
        """Return all channel counts; the blocks of each stage too, if some stage lacks any."""
        widths, blocks = self.stagewise(width)
        return self.channel_counts(widths) + (() if blocks == self.blocks else blocks)

    @abstractmethod
    def channel_counts(self, widths: tuple[float, ...]) -> tuple[int, ...]:
        """Return all that a network needs to know, from the width of each stage."""


class Wrapped(Family):
    """A function or object of the user's own as a family; what it does not have is the default's."""

    def __init__(self, function: Callable[[Any], nn.Module]) -> None:
        self.function = function
        for name in vars(Family):
            if not name.startswith("_") and hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def __call__(self, width: Any) -> nn.Module:
        return self.function(width)

    def describe(self) -> dict[str, Any]:
        return {"backbone": None, "options": {}, "family": qualified_name(self.function)}


def qualified_name(function: Callable[[Any], nn.Module]) -> str:
    """Return a function's own name, or an object's class's."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def as_family(family: Family | Callable[[Any], nn.Module]) -> Family:
    return family if isinstance(family, Family) else Wrapped(family)
