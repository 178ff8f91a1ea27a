import pytest

from us3l.data.view_settings import Views
from us3l.system.errors import UserError


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 3}, "size"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_scale": (0.8, 0.2)}, "crop_scale"),
        ({"crop_scale": (0.2, 1.1)}, "crop_scale"),
        ({"flip": -0.1}, "flip"),
        ({"jitter": 1.5}, "jitter"),
        ({"grey": float("nan")}, "grey"),
        ({"blur": 2.0}, "blur"),
        ({"contrast": -0.4}, "contrast"),
        ({"hue": 0.6}, "hue"),
    ],
)
def test_bad_settings_are_named(settings: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        Views(**settings)
