"""Families of timm's blocks: their plain networks are timm's own."""

import builtins

import pytest
import timm
import torch
from timm.models.convnext import ConvNeXt

import us3l
from us3l.families import FROM_TIMM, recognise
from us3l.storage import shapes_of


@pytest.mark.parametrize("name", FROM_TIMM)
def test_width_1_is_timms_network(name):
    with torch.device("meta"):
        theirs, ours = timm.create_model(name), us3l.create(name, num_classes=1000).full
        assert shapes_of(ours.state_dict()) == {  # our shapes in training, which keeps no statistics
            key: shape for key, shape in shapes_of(theirs.state_dict()).items() if key in ours.state_dict()
        }
        assert len(list(ours.parameters())) == len(list(theirs.parameters()))
        known = recognise(shapes_of(theirs.state_dict()))
        assert known is not None
        assert (known["backbone"], known["base"]) == (name, 64)
        other = {"convnext_atto": "convnext_nano", "convnext_tiny": "convnext_small"}.get(name, "efficientnet_b1")
        assert recognise(shapes_of(timm.create_model(other).state_dict())) is None
        assert recognise(shapes_of(timm.create_model("mobilenetv2_100").state_dict()))["backbone"] == "mobilenet_v2"


@torch.no_grad()
def test_a_carved_convnext_loads_into_timms():
    torch.manual_seed(0)
    net = us3l.create("convnext_atto", num_classes=3, base=16)
    carved = net.carve(0.5)
    theirs = ConvNeXt(num_classes=3, depths=net.family.blocks, dims=net.signature(0.5), conv_mlp=True).eval()
    theirs.load_state_dict(carved.state_dict())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(theirs(images), net.at(0.5)(images))


@torch.no_grad()
def test_efficientnets_shortcuts_are_at_fixed_places():
    """Where channel counts happen to agree, as those of the first convolution and the first stage do here, too."""
    net = us3l.create("efficientnet_b0", stem="cifar", base=16)
    assert net.signature(0.25)[:2] == (8, 8)
    network = net.skeleton(0.25)
    assert [[block.has_skip for block in stage] for stage in network.blocks] == [
        [number > 0 for number in range(count)] for count in net.family.blocks
    ]
    assert network.conv_stem.stride == network.blocks[1][0].conv_dw.stride == (1, 1)


def test_without_timm_it_is_said_what_to_install(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("timm"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    for name in FROM_TIMM:
        with pytest.raises(us3l.UserError, match=rf"{name} needs the package timm.*pip install 'us3l\[timm\]'"):
            us3l.create(name)
