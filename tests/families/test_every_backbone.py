"""What must hold for every backbone, at small sizes."""

from dataclasses import replace
from random import Random

import pytest
import torch
from lightning_fabric import Fabric

import us3l
from us3l.data.augment import random_views
from us3l.data.sources import load
from us3l.families import BACKBONES, FROM_TIMM
from us3l.training.recipes import MINI, Network, Optimiser, named
from us3l.training.trainer import Trainer

SMALL = {
    "resnet18": {"stem": "cifar", "base": 16},
    "resnet50": {"stem": "cifar", "base": 16},
    "mobilenet_v2": {"stem": "cifar", "base": 32},
    "efficientnet_b0": {"stem": "cifar", "base": 16},
    "convnext_atto": {"stem": "cifar", "base": 16},
    "vit_tiny": {"image_size": 8, "patch": 4, "depth": 2},
    "vit_small": {"image_size": 8, "patch": 4, "depth": 2, "heads": 12, "pool": "mean", "positions": "learned"},
}
WIDTHS = [0.25, 0.475, 0.5, 0.61, 0.9999, 1.0]
"""Quarters, and others that no rounding is likely to be made for."""


def rows_and_columns(name: str, narrow: torch.Size, wide: torch.Size, heads: int) -> tuple[torch.Tensor, ...]:
    """Which entries of a wide tensor a narrow one owns, axis by axis."""
    parts = [1] * len(narrow)
    if ".attn.qkv." in name:
        parts[0] = 3 * heads
    elif name.endswith("attn.proj.weight"):
        parts[1] = heads
    axes = []
    for part, small, large in zip(parts, narrow, wide, strict=True):
        axes.append(torch.cat([s * (large // part) + torch.arange(small // part) for s in range(part)]))
    return torch.meshgrid(*axes, indexing="ij")


def some_subnets(net: us3l.Slimmable, count: int = 3) -> list[us3l.Subnet]:
    """Random ones, with fewer blocks."""
    random, blocks = Random(0), net.family.blocks
    return [
        us3l.Subnet([random.uniform(0.25, 1) for _ in blocks], [random.randint(1, most) for most in blocks])
        for _ in range(count)
    ]


def some_widths(net: us3l.Slimmable) -> list[float]:
    """All, or of networks whose many small layers take long a few."""
    return [0.25, 0.61, 1.0] if net.family.name in FROM_TIMM else WIDTHS


@pytest.fixture(scope="module", params=SMALL)
def net(request) -> us3l.Slimmable:
    torch.manual_seed(0)
    net = us3l.create(request.param, **SMALL[request.param]).double()
    for parameter in net.parameters():  # no symmetric start: neither unit norms nor zero biases
        parameter.data += 0.02 * torch.randn_like(parameter)
    return net


@pytest.mark.filterwarnings("ignore:width .* is not calibrated")
def test_shared_equals_carved_forward_and_gradient(net):
    heads = getattr(net.family, "sizes", (0, 0))[1]
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    full = dict(net.full.named_parameters())
    widths = some_widths(net)
    for width in [*widths[::2], *some_subnets(net, min(2, len(widths) // 3))]:
        carved = net.carve(width).train()
        shared, plain = net(images, width=width), carved(images)
        torch.testing.assert_close(shared, plain, rtol=1e-9, atol=1e-9)

        net.zero_grad()
        weights = torch.randn(shared.shape, dtype=torch.float64)
        (shared * weights).sum().backward()
        (plain * weights).sum().backward()
        for key, parameter in carved.named_parameters():
            if not parameter.requires_grad:
                assert full[key].grad is None
                continue
            gradient = full[key].grad.clone()
            owned = rows_and_columns(key, parameter.shape, gradient.shape, heads)
            torch.testing.assert_close(gradient[owned], parameter.grad, rtol=1e-7, atol=1e-8, msg=f"{key} at {width}")
            gradient[owned] = 0
            assert not gradient.any(), f"{key} has a gradient outside of the part of width {width}"
        assert all(full[key].grad is None for key in full.keys() - dict(carved.named_parameters()).keys())


def test_blocks_that_are_left_out_cost_nothing_and_all_blocks_are_a_plain_width(net):
    blocks = net.family.blocks
    shallow = us3l.Subnet(0.5, [1] * len(blocks))
    assert net.canonical(us3l.Subnet(0.5, blocks)) == net.canonical(0.5)
    size = net.family.image_size or 16
    costs = [us3l.cost(net, width, size=size) for width in (0.5, shallow)]
    assert costs[0].macs > costs[1].macs
    assert costs[0].params - costs[1].params == sum(
        parameter.numel()
        for name, parameter in net.skeleton(0.5).named_parameters()
        if name not in dict(net.skeleton(shallow).named_parameters())
    )
    for depths in ([0, *blocks[1:]], [*blocks[:-1], blocks[-1] + 1]):
        with pytest.raises(us3l.UserError, match="stages have 1 to"):
            net.check(us3l.Subnet(0.5, depths))


def test_no_parameter_of_a_carved_network_is_dead(net):
    """In eval mode, as deployed: with the statistics of a batch, a norm's bias before another norm would not matter."""
    size = net.family.image_size or 12
    images = torch.randn(20, 3, size, size, dtype=torch.float64)
    us3l.calibrate(net, images, some_widths(net))
    for width in some_widths(net):
        carved = net.carve(width)
        features = carved(images)
        (features * torch.randn_like(features)).sum().backward()
        for key, parameter in carved.named_parameters():
            if not parameter.requires_grad:
                continue
            used = parameter.grad.abs() > 1e-9
            if key.endswith("qkv.bias"):  # keys that all move alike change no attention: their biases never matter
                used = used.unflatten(0, (3, -1))[[0, 2]].flatten()
            for axis in range(min(2, used.ndim)):  # every channel in and out; small maps do not reach all of a kernel
                channels = used.transpose(0, axis).flatten(1).any(1) if used.ndim > 1 else used
                assert channels.all(), f"part of {key} is dead at width {width}"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 90),
        ("resnet50", 378),
        ("mobilenet_v2", 57),
        ("vit_tiny", 13),
        ("vit_small", 25),
        ("efficientnet_b0", 66),
        ("convnext_atto", 55),
    ],
)
def test_distinct_networks(name, count):
    net = us3l.create(name)
    assert len(net.widths) == count
    assert len({net.signature(0.25 + 0.75 * i / 4_000) for i in range(4_001)}) == count  # by brute force


@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in (*FROM_TIMM, "vit_small")])
def test_a_few_steps_of_us3l_on_digits_lower_the_loss_of_all_widths(name):
    recipe = replace(
        MINI,
        network=Network(name, base=8 if name == "resnet50" else 16, depth=3 if name.startswith("vit") else None),
        objective=replace(MINI.objective, hidden=64, dim=32, max_first=False, gradual=False, teacher_momentum=0.9),
        optimiser=Optimiser(lr=0.1),
        views=replace(named("digits").views, size=8),
        batch_size=48,
        max_steps=20 if name.startswith("vit") else 12,
    )
    digits = load("digits", "train", limit=96)
    trainer = Trainer(recipe, digits, Fabric(accelerator="cpu"))
    views = random_views(digits.images, recipe.views, torch.Generator().manual_seed(1))

    def losses() -> torch.Tensor:
        with torch.no_grad():
            base, targets = trainer.learner(views, 1.0)
            return torch.stack([base, *(trainer.learner(views, width, targets)[0] for width in (0.25, 0.62))])

    before = losses()
    while trainer.step < trainer.steps:
        trainer.train_step()
    fallen = before - losses()
    assert fallen[0] > 0.1
    assert (fallen[1:] > 0.5).all()


def test_bad_choices_are_explained():
    for options in ({"patch": 15}, {"heads": 5}, {"pool": "max"}, {"positions": "none"}, {"base": 5}, {"depth": 0}):
        with pytest.raises(us3l.UserError, match=next(iter(options))):
            us3l.create("vit_tiny", **options)
    with pytest.raises(us3l.UserError, match="did you mean 'mobilenet_v2'"):
        us3l.create("mobilenet")
    with pytest.raises(us3l.UserError, match=r"mobilenet_v2 does not take these options.*patch"):
        us3l.create("mobilenet_v2", patch=4)
    with pytest.raises(us3l.UserError, match="base=4"):
        us3l.create("mobilenet_v2", base=4)
    with pytest.raises(us3l.UserError, match="unknown stem 'mars'"):
        us3l.create("mobilenet_v2", stem="mars")
