"""Settings of the augmentation, without torch so that the command line can read them at once."""

from dataclasses import dataclass, replace

from us3l.system.errors import UserError

Channels = tuple[float, float, float]
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's channel statistics, used for every data set so that a network can move between them."""


@dataclass(frozen=True)
class Views:
    """How the two random views of an image are made."""

    size: int = 32
    """Side of a view, in pixels."""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest share of the image's area that a crop covers."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: float = 0.8
    """Probability of colour jitter (brightness, contrast, saturation and hue in random order)."""
    brightness: float = 0.4
    """Strength of the brightness jitter: the factor is within 1 +- this."""
    contrast: float = 0.4
    """Strength of the contrast jitter: the factor is within 1 +- this."""
    saturation: float = 0.4
    """Strength of the saturation jitter: the factor is within 1 +- this."""
    hue: float = 0.1
    """Strength of the hue jitter: the shift is within +- this share of the colour circle, at most 0.5."""
    grey: float = 0.2
    """Probability of a grey view."""
    blur: float = 0.0
    """Probability of a Gaussian blur, with a sigma of 0.1 to 2 pixels."""
    second_blur: float | None = None
    """The same for the second view (default: as for the first)."""
    solarise: float = 0.0
    """Probability that all values of at least a half are inverted (solarisation)."""
    second_solarise: float | None = None
    """The same for the second view (default: as for the first)."""

    def __post_init__(self) -> None:
        if self.size < 4:
            raise UserError(f"views: size must be at least 4 pixels, not {self.size}")
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise UserError(f"views: crop_scale must be two rising shares within (0, 1], not {low} {high}")
        for name in ("flip", "jitter", "grey", "blur", "second_blur", "solarise", "second_solarise"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise UserError(f"views: {name} is a probability, within [0, 1], not {getattr(self, name)}")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"views: {name} must not be negative, not {getattr(self, name)}")
        if not 0 <= self.hue <= 0.5:
            raise UserError(f"views: hue must be within [0, 0.5], not {self.hue}")

    @property
    def second(self) -> "Views":
        """How the second view is made."""
        blur = self.blur if self.second_blur is None else self.second_blur
        solarise = self.solarise if self.second_solarise is None else self.second_solarise
        return replace(self, blur=blur, solarise=solarise, second_blur=None, second_solarise=None)
