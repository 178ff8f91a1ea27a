"""How an image looks to a network: the one way of calibration, monitoring, evaluation, export and deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from us3l.data.view_settings import MEAN, STD, Channels
from us3l.system.errors import UserError
from us3l.system.files import finite

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from us3l.data.decode import Encoded
    from us3l.slimmable import Slimmable

LARGE = 64
"""From this size on a network looks at photographs, and sees their centre; smaller images it sees whole."""
LARGEST = 4096
"""Side of the images that a network sees."""
EXTREME = 1e6
"""Largest mean and standard deviation, and one over the smallest deviation: more would leave the range of floats."""


@dataclass(frozen=True)
class Preprocessing:
    """The square centre of an image, resized to `resize`; of that the centre `size`; less `mean`, over `std`.

    >>> Preprocessing.usual(224)
    Preprocessing(size=224, resize=256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    """

    size: int
    """Side of what the network sees, in pixels."""
    resize: int
    """Side of the image that this is the centre of."""
    mean: Channels = MEAN
    std: Channels = STD
    """Of red, green and blue, for pixels from 0 to 1."""

    def __post_init__(self) -> None:
        for name, smallest, largest in (("size", 1, LARGEST), ("resize", self.size, 2 * LARGEST)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
                raise UserError(f"preprocessing: {name} must be {smallest} to {largest} pixels, not {value!r:.50}")
        for name, least in (("mean", -EXTREME), ("std", 1 / EXTREME)):
            values = getattr(self, name)
            good = isinstance(values, tuple) and len(values) == 3 and all(map(finite, values))
            if not good or not all(least <= value <= EXTREME for value in values):
                raise UserError(
                    f"preprocessing: {name} must be three numbers of {least:g} to {EXTREME:g}, not {values!r:.80}"
                )

    @classmethod
    def usual(cls, size: int) -> Preprocessing:
        """ImageNet's statistics. Small images are seen whole; large ones at 8/7 of the size, and then their centre.

        Small images show their object alone; for photographs it is usual to resize to 256 and to cut out 224.
        """
        large = isinstance(size, int) and LARGE <= size <= LARGEST
        return cls(size, round(size * 256 / 224) if large else size)

    @classmethod
    def from_plain(cls, values: Any) -> Preprocessing:
        """From what `to_plain` gave. Values that older files do not have are the usual ones.

        Raises:
            UserError: They are not a preprocessing.
        """
        if not isinstance(values, dict) or "size" not in values:
            raise UserError(f"preprocessing: expected size, resize, mean and std, not {values!r:.80}")
        usual = cls.usual(values["size"])
        mean, std = (
            tuple(found) if isinstance(found, list) else found
            for found in (values.get(name, getattr(usual, name)) for name in ("mean", "std"))
        )
        return cls(usual.size, values.get("resize", usual.resize), mean, std)

    def to_plain(self) -> dict[str, Any]:
        """As models, manifests and exported files hold it."""
        return {"size": self.size, "resize": self.resize, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def of(cls, net: Slimmable, size: int | None = None) -> Preprocessing:
        """What a network was trained on, as its metadata say, else the usual one for its family.

        Args:
            net: The network.
            size: Show it images of another size than its own.
        """
        known = net.metadata.get("preprocessing")
        own = cls.usual(net.family.usual_size) if known is None else cls.from_plain(known)
        if size in (None, own.size):
            return own
        return replace(cls.usual(size), mean=own.mean, std=own.std)

    def decode(self, encoded: Encoded, most: int | None = None) -> np.ndarray:
        """The square centre of an image file: `resize` x `resize` x 3, uint8.

        Args:
            encoded: The image.
            most: Pixels that it may have (default: as many as are read at all).

        Raises:
            us3l.data.decode.Damaged: It cannot be used.
        """
        from us3l.data.decode import decode

        return decode(encoded, self.resize, most=most)

    def apply_decoded(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """What `apply` gives, to the bit, for what `decode` gave: for few images the calls of PyTorch would take most
        of the time.

        Args:
            images: Each 3 x `resize` x `resize`, uint8, in any order in memory.

        Returns:
            N x 3 x size x size, float32.
        """
        import numpy as np

        start, end = (self.resize - self.size) // 2, (self.resize + self.size) // 2
        found = np.empty((len(images), 3, self.size, self.size), np.float32)
        for row, image in zip(found, images, strict=True):
            np.divide(image[:, start:end, start:end], np.float32(255), out=row)
        mean, scale = self._shift_and_scale
        found -= mean
        found *= scale
        return found

    @cached_property
    def _shift_and_scale(self) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (self.mean, self.std))
        return mean, 1 / std

    def apply(self, pixels: Tensor) -> Tensor:
        """What the network sees of images.

        Args:
            pixels: N x 3 x H x W, uint8. Those that are not square lose their longer sides' ends.

        Returns:
            N x 3 x size x size, float32, on the pixels' device.
        """
        from torch.nn import functional as F

        from us3l.data.augment import normalise

        square = centre(pixels, min(pixels.shape[-2:])).float().div_(255)
        if square.shape[-1] != self.resize:
            square = F.interpolate(square, (self.resize, self.resize), mode="bilinear", antialias=True)
        return normalise(centre(square, self.size), self.mean, self.std)


def centre(images: Tensor, size: int) -> Tensor:
    """The centre `size` x `size` of images (... x H x W)."""
    top, left = ((side - size) // 2 for side in images.shape[-2:])
    return images[..., top : top + size, left : left + size]
