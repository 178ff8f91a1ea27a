"""The contract of families: what us3l asks of them is asked in one place and has defaults."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import us3l
from us3l.families import options_for
from us3l.families.family import Family, as_family

SOURCES = Path(us3l.__file__).parent


def test_nobody_else_asks_what_a_family_has() -> None:
    asking = re.compile(
        r"(has|get)attr\([^)]*\b(family|full|net|network)\b|startswith\(\"(vit|resnet|mobilenet)|"
        r"isinstance\([^)]*(MobileNet|ResNet|ViT|LayerNorm)"
    )
    others = [path for path in SOURCES.rglob("*.py") if path.parent.name != "families"]
    assert len(others) > 100
    assert not [str(path) for path in others if asking.search(path.read_text())]


def plain(width: float) -> nn.Module:
    return nn.Linear(4, round(8 * width))


class Half:
    """An object that has some of the names."""

    name = "half"
    stages = 2
    transformer = True

    def __call__(self, width: float) -> nn.Module:
        return plain(width)

    def segments(self, name: str) -> tuple[int, ...]:
        return (2,) if name == "weight" else ()


def test_a_function_is_wrapped_and_gets_the_defaults() -> None:
    family = us3l.Slimmable(plain).family
    assert isinstance(family, Family)
    assert (family.name, family.stages, family.image_size, family.usual_size) == ("network", None, None, 224)
    assert not family.transformer
    assert family.signature(0.5) is None
    assert family.segments("weight") == ()
    assert family.feature_maps(plain(1.0)) is None
    assert family.describe() == {"backbone": None, "options": {}, "family": "plain"}
    network = plain(1.0)
    assert list(family.chain(network)) == [network]
    assert as_family(family) is family


def test_what_an_object_has_counts() -> None:
    net = us3l.Slimmable(Half())
    assert (net.family.name, net.family.stages, net.family.image_size) == ("half", 2, None)
    assert net.family.transformer
    assert net.family.describe()["family"] == "Half"
    rows = torch.tensor([0, 1, 4, 5])
    assert torch.equal(copy.deepcopy(net).carve(0.5).weight, net.full.weight[rows])


def test_a_name_of_ours_makes_no_backbone_of_ours(tmp_path: Path) -> None:
    half = Half()
    half.name = "resnet18"
    us3l.Slimmable(half).save(tmp_path)
    with pytest.raises(us3l.UserError, match="your own family 'Half'"):
        us3l.load(tmp_path)
    assert us3l.load(tmp_path, family=Half()).family.name == "half"


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "vit_tiny", "vit_small"])
@pytest.mark.parametrize(("stem", "size"), [("cifar", 32), ("imagenet", 224)])
@pytest.mark.parametrize("individual", [None, 0.5])
def test_backbones_answer_for_themselves(name: str, stem: str, size: int, individual: float | None) -> None:
    with torch.device("meta"):
        family = us3l.create(name, individual=individual, **options_for(name, stem, size)).family
    assert family.name == name
    assert family.usual_size == size
    assert family.image_size == (size if name.startswith("vit") else None)
    assert family.transformer == name.startswith("vit")
    described = family.describe()
    with torch.device("meta"):
        assert us3l.create(described["backbone"], **described["options"]).family == family
