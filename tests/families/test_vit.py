import math

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

import us3l
from us3l.deploy.exporting import convert
from us3l.families.vit import sincos_positions

SMALL = {"image_size": 16, "patch": 4, "depth": 2}


@pytest.mark.parametrize("name", ["vit_tiny", "vit_small"])
def test_it_is_timms_network_at_width_1(name):
    torch.manual_seed(0)
    theirs = timm.create_model(f"{name}_patch16_224").eval()
    net = us3l.create(name, num_classes=1000)
    net.load_plain(theirs.state_dict())
    images = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(net(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1.0, 0.75, 0.43, 0.25])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_carved_network_is_timms_of_that_dimension(width, pool):
    torch.manual_seed(0)
    net = us3l.create("vit_tiny", heads=6, pool=pool, num_classes=10, **SMALL)
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    dim, heads = net.signature(width)
    assert heads == 6
    pooling = {"class_token": False, "global_pool": "avg", "fc_norm": False} if pool == "mean" else {}
    theirs = VisionTransformer(16, 4, num_classes=10, embed_dim=dim, depth=2, num_heads=heads, **pooling).eval()
    theirs.load_state_dict(net.carve(width).state_dict())
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(theirs(images), net(images, width=width), rtol=1e-5, atol=1e-5)


def moco_v3_positions(side: int, dim: int) -> torch.Tensor:
    """Channel by channel, as in its 2D sin-cos embedding, in its order of channels: a quarter for each of four."""
    table = torch.zeros(side * side, dim)
    for token in range(side * side):
        for k in range(dim // 4):
            omega = 1 / 10_000 ** (k / (dim // 4))
            for quarter, value in enumerate((token % side, token // side)):
                table[token, 2 * quarter * (dim // 4) + k] = math.sin(value * omega)
                table[token, (2 * quarter + 1) * (dim // 4) + k] = math.cos(value * omega)
    return table


def test_positions_are_those_of_moco_v3_in_another_order_of_channels():
    side, dim = 3, 16
    ours = sincos_positions(side, dim, cls=True)[0]
    assert not ours[0].any()
    reordered = moco_v3_positions(side, dim).unflatten(1, (4, -1)).transpose(1, 2).flatten(1)
    torch.testing.assert_close(ours[1:], reordered)


def test_narrow_networks_tell_rows_and_columns_apart():
    """A leading slice of MoCo v3's order would lose the rows below a width of 0.75, and all but sin at 0.25."""
    net = us3l.create("vit_tiny", **SMALL)
    positions = net.slices(0.25)["pos_embed"][0, 1:]
    assert torch.cdist(positions, positions).add(torch.eye(16)).min() > 0.5
    assert torch.equal(positions, net.full.pos_embed[0, 1:, :48])


def test_what_is_learned():
    def frozen(**options) -> set[str]:
        parameters = us3l.create("vit_tiny", **SMALL, **options).carve(0.5).named_parameters()
        return {name for name, parameter in parameters if not parameter.requires_grad}

    assert frozen() == {"pos_embed"}
    assert frozen(positions="learned") == set()
    assert frozen(frozen_patches=True) == {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}


def test_at_brings_segmented_tensors_up_to_date():
    torch.manual_seed(0)
    net = us3l.create("vit_tiny", **SMALL)
    images = torch.randn(2, 3, 16, 16)
    view = net.at(0.5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert net.at(0.5) is view
    torch.testing.assert_close(view(images), net(images, width=0.5))
    own = {p.untyped_storage().data_ptr() for p in net.full.parameters()}
    copies = {name for name, p in view.named_parameters() if p.untyped_storage().data_ptr() not in own}
    assert {name.split(".", 2)[2] for name in copies} == {"attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight"}


def test_images_of_another_size_are_refused():
    net = us3l.create("vit_tiny", **SMALL)
    with pytest.raises(us3l.UserError, match=r"16 pixels, not \(32, 32\)"):
        net(torch.randn(2, 3, 32, 32))
    with pytest.raises(us3l.UserError, match="a single number"):
        net(torch.randn(2, 3, 16, 16), width=(0.5, 0.5))


def test_save_and_load(tmp_path):
    net = us3l.create("vit_tiny", heads=6, pool="mean", **SMALL)
    net.save(tmp_path / "model")
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(us3l.load(tmp_path / "model").at(0.37)(images), net.at(0.37)(images))


def test_it_exports_with_any_batch_size(tmp_path):
    net = us3l.create("vit_tiny", **SMALL)
    convert(net.carve(0.5), "torch", 16, tmp_path / "vit")
    images = torch.randn(5, 3, 16, 16)
    exported = torch.export.load(tmp_path / "vit.pt2").module()
    torch.testing.assert_close(exported(images), net.at(0.5)(images), rtol=1e-5, atol=1e-5)
