"""Two random views of a batch of images, in a few tensor operations on the images' device.

Every image has draws of its own. All of them are made on the CPU: the views are the same on every device, and the
lists of images that need an operation are known without asking the device. Each operation equals torchvision's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.data.view_settings import MEAN, STD, Views

CROP_TRIES = 10
ASPECT = (3 / 4, 4 / 3)
LOG_ASPECT = (math.log(ASPECT[0]), math.log(ASPECT[1]))
BLUR_SIGMA = (0.1, 2.0)
DRAWN = 2 * CROP_TRIES + 15
"""Random numbers per view, solarising apart: tries of the crop, its place, flip, jitter, grey, blur."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NEUTRAL = (1.0, 1.0, 1.0, 0.0)  # their factors that change nothing


@dataclass(frozen=True)
class Draws:
    """What was drawn for a batch of N images, on the CPU."""

    size: int
    """Side of the views."""
    boxes: Tensor
    """N x 4, int64: top, left, height and width of the crop."""
    flip: Tensor
    """N, bool."""
    factors: Tensor
    """N x 4: brightness, contrast, saturation and hue; `NEUTRAL` where an image is not jittered."""
    order: Tensor
    """N x 4, int64: which of the four comes first, second, third, last."""
    grey: Tensor
    """N, bool."""
    sigma: Tensor
    """N: of the blur, 0 where there is none."""
    solarise: Tensor
    """N, bool."""

    def rows(self, chosen: slice) -> "Draws":
        """What was drawn for some of the images."""
        return Draws(self.size, *(values[chosen] for values in self.values()))

    def followed_by(self, other: "Draws") -> "Draws":
        """What was drawn for these and then for other images."""
        return Draws(self.size, *map(torch.cat, zip(self.values(), other.values(), strict=True)))

    def values(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self) if field.name != "size"]


def draw(views: Views, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
    """The random choices for `count` images of `height` x `width` pixels, from a CPU generator."""
    uniform = torch.rand(count, DRAWN, generator=generator, dtype=torch.float64)
    # Drawn apart, and only where it is wanted, so that other views stay as they always were.
    solarise = torch.rand(count, generator=generator, dtype=torch.float64) if views.solarise else torch.ones(count)
    area, aspect, place, _ = uniform.split([CROP_TRIES, CROP_TRIES, 2, DRAWN - 2 * CROP_TRIES - 2], dim=1)
    return drawn(views, uniform, solarise, _crop_boxes(views.crop_scale, area, aspect, place, height, width))


def drawn(views: Views, uniform: Tensor, solarise: Tensor, boxes: Tensor) -> Draws:
    """The choices that random numbers stand for.

    Args:
        views: How views are made.
        uniform: N x `DRAWN` numbers within [0, 1): one row per image. In double precision, so that flooring a scaled
            one never reaches the upper end.
        solarise: N more of them.
        boxes: N x 4, the crops that the first of the numbers stand for.
    """
    _, flip, jitter, strength, rank, grey, blur, sigma = uniform.split([2 * CROP_TRIES + 2, 1, 1, 4, 4, 1, 1, 1], dim=1)
    amplitude = torch.tensor([views.brightness, views.contrast, views.saturation, views.hue], dtype=torch.float64)
    neutral = torch.tensor(NEUTRAL, dtype=torch.float64)
    low = torch.maximum(neutral - amplitude, torch.tensor([0.0, 0.0, 0.0, -0.5]))  # a factor is never negative
    factors = low + (neutral + amplitude - low) * strength
    return Draws(
        size=views.size,
        boxes=boxes,
        flip=flip[:, 0] < views.flip,
        factors=torch.where(jitter < views.jitter, factors, neutral).float(),
        order=rank.argsort(dim=1),
        grey=grey[:, 0] < views.grey,
        sigma=torch.where(blur < views.blur, _between(BLUR_SIGMA, sigma), 0)[:, 0].float(),
        solarise=solarise < views.solarise,
    )


def _crop_boxes(
    scale: tuple[float, float], area: Tensor, aspect: Tensor, place: Tensor, height: int, width: int
) -> Tensor:
    """torchvision's random resized crop: the first of ten tries that fits, else the largest allowed centre crop."""
    pixels = height * width * _between(scale, area)
    ratio = _between(LOG_ASPECT, aspect).exp()
    extents = torch.stack([(pixels / ratio).sqrt().round(), (pixels * ratio).sqrt().round()], dim=2)  # N x tries x 2
    limits = extents.new_tensor([height, width])
    fits = ((extents > 0) & (extents <= limits)).all(dim=2)
    first = fits.int().argmax(dim=1)  # argmax gives the first of equal values
    extent = extents[torch.arange(len(extents)), first]
    corner = (place * (limits - extent + 1)).floor()

    largest = limits.minimum((limits.flip(0) * limits.new_tensor([1 / ASPECT[0], ASPECT[1]])).round())
    found = fits.any(dim=1, keepdim=True)
    extent = extent.where(found, largest)
    corner = corner.where(found, ((limits - largest) / 2).floor())
    return torch.cat([corner, extent], dim=1).long()


def crop_box(
    scale: tuple[float, float], uniform: Sequence[float], height: int, width: int
) -> tuple[int, int, int, int]:
    """The box that a row of random numbers stands for, the same as `draw` gives; for one image, twenty times quicker.

    Args:
        scale: Smallest and largest share of the area.
        uniform: `DRAWN` numbers within [0, 1).
        height: Of the image.
        width: Of the image.

    Returns:
        Top, left, height and width.
    """
    (low, high), (flattest, tallest) = scale, LOG_ASPECT
    for area, aspect in zip(uniform[:CROP_TRIES], uniform[CROP_TRIES : 2 * CROP_TRIES], strict=True):
        pixels = height * width * (low + (high - low) * area)
        ratio = math.exp(flattest + (tallest - flattest) * aspect)
        rows, columns = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            down, right = uniform[2 * CROP_TRIES : 2 * CROP_TRIES + 2]
            return int(down * (height - rows + 1)), int(right * (width - columns + 1)), rows, columns
    rows, columns = min(height, round(width * (1 / ASPECT[0]))), min(width, round(height * ASPECT[1]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * uniform


def apply(images: Tensor, draws: Draws) -> Tensor:
    """The view of each image that its draws describe.

    `images` is N x 3 x H x W, uint8 or float within [0, 1]; the result N x 3 x S x S, float32 within [0, 1].
    """
    return _recoloured(_crop(images, draws), draws)


def apply_to_crops(crops: Tensor, draws: Draws) -> Tensor:
    """What `apply` makes of images, of crops that have been cut and resized already: N x 3 x S x S, uint8."""
    view = _unit_range(crops)
    _update(view, draws.flip, lambda chosen, _: chosen.flip(-1), draws.sigma)
    return _recoloured(view, draws)


def _recoloured(view: Tensor, draws: Draws) -> Tensor:
    """Jitter, grey, blur and solarising of views, in place."""
    for operation, factor in zip(draws.order.unbind(1), draws.factors.gather(1, draws.order).unbind(1), strict=True):
        turned = operation == HUE
        blend_(view, operation, factor.where(~turned, 1.0))  # all in one is quicker than to pick the images of each
        _update(view, turned & (factor != 0), hue, factor)
    _update(view, draws.grey, lambda chosen, _: _luma(chosen).expand_as(chosen), draws.sigma)
    _update(view, draws.sigma > 0, blur, draws.sigma)
    _update(view, draws.solarise, lambda chosen, _: torch.where(chosen >= 0.5, 1 - chosen, chosen), draws.sigma)
    return view


def random_views(
    images: Tensor,
    views: Views,
    generator: torch.Generator,
    count: int = 2,
    part: tuple[int, int] = (0, 1),
    mean: tuple[float, float, float] = MEAN,
    std: tuple[float, float, float] = STD,
) -> tuple[Tensor, ...]:
    """Independent random views of every image, normalised.

    Of images that are a part of a batch, (0, 2) being its first half, the views that they have in the whole of it.

    Args:
        images: N x 3 x H x W, uint8.
        views: How they are made.
        generator: What all draws come from, on the CPU.
        count: The number of views.
        part: Which part of a batch the images are.
        mean: What to take from the channels.
        std: What to divide them by.

    Returns:
        Tensors of N x 3 x S x S, float32.
    """
    rows, _, height, width = images.shape
    number, parts = part
    own = slice(number * rows, (number + 1) * rows)
    settings = [views, *[views.second] * (count - 1)]
    draws = [draw(each, parts * rows, height, width, generator).rows(own) for each in settings]
    together = reduce(Draws.followed_by, draws)
    return normalise(apply(images.repeat(count, 1, 1, 1), together), mean, std).chunk(count)


def normalise(images: Tensor, mean: tuple[float, float, float] = MEAN, std: tuple[float, float, float] = STD) -> Tensor:
    """Images within [0, 1], less the mean (ImageNet's unless given) and over the standard deviation, by channel."""
    shift, scale = (_to(values, images.device).view(3, 1, 1) for values in (torch.tensor(mean), 1 / torch.tensor(std)))
    return (images - shift).mul_(scale)


def blend_(images: Tensor, operation: Tensor, factor: Tensor) -> None:
    """Draw images to (factor < 1) or from (> 1) black, their mean luma, or their luma, in place.

    Which of these, the operation of each image says: brightness, contrast or saturation.
    """
    if (factor == 1).all():
        return
    rest = 1 - factor
    own, mean = (_to(_per_image(rest * (operation == kind)), images.device) for kind in (SATURATION, CONTRAST))
    luma = _luma(images)
    mean = mean * _per_image(luma.flatten(1).mean(dim=1))  # several times quicker than over three dimensions
    torch.addcmul(luma.mul_(own).add_(mean), images, _to(_per_image(factor), images.device), out=images).clamp_(0, 1)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Images with their hue turned by `shift` circles, saturation and value kept."""
    red, green, blue = images.unbind(dim=1)
    # On CPUs aminmax along a dimension, where and remainder are several times slower than what stands here for them.
    low, high = images.amin(dim=1), images.amax(dim=1)
    chroma = high - low
    sixth = torch.lerp(blue - red + 2 * chroma, red - green + 4 * chroma, (high - green).sign_())
    sixth = torch.lerp(green - blue, sixth, (high - red).sign_()).div_(chroma.clamp(min=1e-12))  # [-1, 5], grey: any
    sixth += 6 * shift.view(-1, 1, 1)
    sixth -= 6 * (sixth / 6).floor_()
    # A channel is full within one sixth of the circle from its primary colour, and lowest from two sixths on.
    primary = _to(torch.tensor([0.0, 2.0, 4.0]), images.device).view(3, 1, 1)
    share = (sixth.unsqueeze(1) - primary).abs_().sub_(3).abs_().sub_(1).clamp_(0, 1)
    return torch.addcmul(low.unsqueeze(1), share, chroma.unsqueeze(1))


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Images blurred by a Gaussian cut at about a tenth of their side, with reflected edges."""
    size = images.shape[-1]
    radius = blur_radius(size)
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    kernel = (-0.5 * (offsets / sigma.view(-1, 1)) ** 2).softmax(dim=1)
    reach = (torch.arange(size, device=images.device) + offsets.view(-1, 1)).abs()
    reach = size - 1 - (size - 1 - reach).abs()  # reflected at both ends
    taps = F.one_hot(reach, size).to(kernel.dtype)  # offsets x S x S
    matrix = (kernel @ taps.flatten(1)).view(-1, size, size)
    return _separable(matrix, images, matrix)


def blur_radius(size: int) -> int:
    """Half the width of the blur's kernel for images of this side."""
    return max(1, size // 20)


def _crop(images: Tensor, draws: Draws) -> Tensor:
    """Crop, resize and flip by a matrix for the rows and one for the columns of each image."""
    height, width = images.shape[-2:]
    top, left, box_height, box_width = _to(draws.boxes.float(), images.device).unbind(dim=1)
    rows = _resample(top, box_height, height, draws.size)
    columns = _resample(left, box_width, width, draws.size, _to(draws.flip, images.device))
    return _separable(rows, images, columns)


def _separable(rows: Tensor, images: Tensor, columns: Tensor) -> Tensor:
    """rows @ image @ columns^T, for each image with matrices of its own."""
    count, channels, height, width = images.shape
    # With the channels side by side it is two plain batched products; broadcasting over channels is 3x slower.
    wide = _unit_range(images.transpose(1, 2).reshape(count, height, channels * width))
    product = (rows @ wide).view(count, -1, width) @ columns.mT  # N x (S * channels) x S
    return product.view(count, rows.shape[1], channels, columns.shape[1]).transpose(1, 2).contiguous()


def _resample(start: Tensor, length: Tensor, inputs: int, outputs: int, mirror: Tensor | None = None) -> Tensor:
    """N x outputs x inputs: bilinear, antialiased weights that stretch [start, start + length) over the outputs."""
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    target = torch.arange(outputs, device=start.device).view(1, -1, 1) + 0.5
    if mirror is not None:
        target = torch.where(mirror.view(-1, 1, 1), outputs - target, target)
    source = torch.arange(inputs, device=start.device) + 0.5
    scale = length / outputs
    weights = (source - (start + scale * target)).abs_().div_(-scale.clamp(min=1)).add_(1).clamp_(min=0)
    weights *= (source > start) & (source < start + length)
    return weights.div_(weights.sum(dim=2, keepdim=True))


def _update(images: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> None:
    """Replace the chosen images in place; the choice is on the CPU, so nothing waits for the device."""
    index = chosen.nonzero()[:, 0]
    if len(index):
        values, index = _to(values[index], images.device), _to(index, images.device)
        images.index_copy_(0, index, operation(images.index_select(0, index), values))


def _unit_range(images: Tensor) -> Tensor:
    return images.float().div_(255) if images.dtype == torch.uint8 else images.float()


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _to(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device, non_blocking=True)
