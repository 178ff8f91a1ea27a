"""Costs against closed forms, against an independent counter, and against the paper's tables."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fvcore.nn import FlopCountAnalysis
from torch import nn

import us3l
from us3l.costs import pareto
from us3l.families import BACKBONES, FROM_TIMM

WIDTHS = (1.0, 0.75, 0.5, 0.25)
# Millions of parameters, billions of MACs, and the paper's MACs, at those widths (its 22.56 M params is a misprint).
PUBLISHED = {
    "resnet18": ((11.69, 6.68, 3.06, 0.83), (1.81, 1.04, 0.48, 0.14), (1.82, 1.05, 0.49, 0.14)),
    "resnet50": ((25.56, 14.77, 6.92, 1.99), (4.09, 2.32, 1.05, 0.28), (4.11, 2.34, 1.06, 0.28)),
}
# Channels of MobileNetV2's stages, rounded by hand
MOBILENET = {
    1.0: [16, 24, 32, 64, 96, 160, 320],
    0.75: [16, 24, 24, 48, 72, 120, 240],
    0.5: [8, 16, 16, 32, 48, 80, 160],
    0.25: [8, 8, 8, 16, 24, 40, 80],
}
TABLES = Path(__file__).parents[2] / "shared" / "paper" / "tables"


@pytest.fixture(scope="module", params=[name for name in BACKBONES if name not in FROM_TIMM])
def net(request) -> us3l.Slimmable:
    return us3l.create(request.param, num_classes=1000)


class Sum:
    """Convolutions with norms, added up layer by layer."""

    def __init__(self) -> None:
        self.params = self.macs = self.norms = self.statistics = 0

    def __call__(self, inside: int, outside: int, kernel: int, side: int) -> None:
        weights = kernel**2 * inside * outside
        self.params += weights + 2 * outside
        self.macs += weights * side**2
        self.norms += 2 * outside * side**2
        self.statistics += 2 * 4 * outside + 8  # means, variances and a count

    def classified(self, features: int, side: int) -> us3l.Cost:
        params, macs = self.params + (features + 1) * 1000, self.macs + features * 1000
        return us3l.Cost(params, macs, macs + self.norms + features * side**2, 4 * params + self.statistics)


def closed_form_resnet(width: float, blocks: list[int], bottleneck: bool) -> us3l.Cost:
    """With the ImageNet stem, 1000 classes and images of 224 pixels."""
    layer, inside, side = Sum(), int(64 * width), 56
    layer(3, inside, 7, 112)
    for stage, count in enumerate(blocks):
        inner = int(64 * 2**stage * width)
        outer = 4 * inner if bottleneck else inner
        for block in range(count):
            before, side = side, side // 2 if stage > 0 and block == 0 else side
            if bottleneck:
                layer(inside, inner, 1, before)  # torchvision strides in the 3x3 convolution
                layer(inner, inner, 3, side)
                layer(inner, outer, 1, side)
            else:
                layer(inside, inner, 3, side)
                layer(inner, outer, 3, side)
            if block == 0 and (stage > 0 or bottleneck):
                layer(inside, outer, 1, side)
            inside = outer
    return layer.classified(inside, side)


def closed_form_mobilenet(stem: int, channels: list[int]) -> us3l.Cost:
    layer, inside, side = Sum(), stem, 112
    layer(3, stem, 3, side)
    for outside, expansion, count, stride in zip(
        channels, (1, 6, 6, 6, 6, 6, 6), (1, 2, 3, 4, 3, 3, 1), (1, 2, 2, 2, 1, 2, 1), strict=True
    ):
        for block in range(count):
            hidden = expansion * inside
            if expansion > 1:
                layer(inside, hidden, 1, side)
            side = side // stride if block == 0 else side
            layer(1, hidden, 3, side)  # depthwise
            layer(hidden, outside, 1, side)
            inside = outside
    layer(inside, 1280, 1, side)
    return layer.classified(1280, side)


def closed_form_vit(dim: int, depth: int = 12, tokens: int = 197) -> us3l.Cost:
    params = 768 * dim + dim + dim + tokens * dim + depth * (12 * dim**2 + 13 * dim) + 2 * dim + (dim + 1) * 1000
    attention = 2 * tokens**2 * dim
    macs = 196 * 768 * dim + depth * (12 * dim**2 * tokens + attention) + dim * 1000
    return us3l.Cost(params, macs, macs + (2 * depth + 1) * 2 * tokens * dim, 4 * params)


@pytest.mark.parametrize("width", WIDTHS)
def test_closed_forms(net, width):
    expected = {
        "resnet18": lambda: closed_form_resnet(width, [2, 2, 2, 2], bottleneck=False),
        "resnet50": lambda: closed_form_resnet(width, [3, 4, 6, 3], bottleneck=True),
        "mobilenet_v2": lambda: closed_form_mobilenet(int(32 * width), MOBILENET[width]),
        "vit_tiny": lambda: closed_form_vit(int(192 * width)),
        "vit_small": lambda: closed_form_vit(int(384 * width)),
    }
    assert us3l.cost(net, width) == expected[net.family.name]()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    net = us3l.create(name, num_classes=1000)
    costs = [us3l.cost(net, width) for width in WIDTHS]
    params, macs, with_norms = PUBLISHED[name]
    assert tuple(round(cost.params / 1e6, 2) for cost in costs) == params
    assert tuple(round(cost.macs / 1e9, 2) for cost in costs) == macs
    assert tuple(round(cost.macs_with_norms / 1e9, 2) for cost in costs) == with_norms


@pytest.mark.skipif(not TABLES.is_dir(), reason="the paper's tables (../shared/paper) are not on this machine")
@pytest.mark.parametrize(("name", "table"), [("resnet18", "classification-r18"), ("resnet50", "classification")])
def test_the_figures_are_those_of_the_papers_tables(name, table):
    with open(TABLES / f"{table}.csv") as lines:
        rows = {row["Width"]: (row["Params"], row["MACS"]) for row in csv.DictReader(lines)}
    params, _, macs = PUBLISHED[name]
    misprint = {"25.56M": "22.56M"} if name == "resnet50" else {}
    expected = {
        f"{width}x": (misprint.get(f"{p:.2f}M", f"{p:.2f}M"), f"{m:.2f}G")
        for width, p, m in zip(WIDTHS, params, macs, strict=True)
    }
    assert {width: rows[width] for width in expected} == expected


@pytest.mark.parametrize("width", [1.0, 0.37])
def test_an_independent_counter_agrees(net, width):
    network = net.family(width).eval()
    counter = FlopCountAnalysis(network, torch.zeros(1, 3, 224, 224))
    counter.unsupported_ops_warnings(False)

    def attention(inputs, _) -> int:
        *outer, tokens, head = inputs[0].type().sizes()
        return 2 * torch.Size(outer).numel() * tokens**2 * head

    # It lacks attention, and takes five for each number of a layer norm, where two are usual for batch norm.
    counter.set_op_handle("aten::scaled_dot_product_attention", attention)
    counter.set_op_handle("aten::layer_norm", lambda inputs, _: 2 * torch.Size(inputs[0].type().sizes()).numel())
    operators = counter.by_operator()
    found = us3l.cost(network)
    assert found.macs_with_norms == sum(operators.values())
    extras = sum(operators[name] for name in ("batch_norm", "layer_norm", "adaptive_avg_pool2d"))
    assert found.macs == sum(operators.values()) - extras


def test_the_price_of_a_width_is_that_of_its_finished_network():
    net = us3l.create("resnet18", stem="cifar", base=8)
    cost = us3l.cost(net, 0.5)
    assert cost == us3l.cost(net, 0.5, size=32)
    us3l.calibrate(net, torch.randn(4, 3, 32, 32), 0.5)
    view = net.at(0.5)
    assert cost == us3l.cost(net, 0.5) == us3l.cost(net.carve(0.5), (3, 32, 32)) == us3l.cost(view, (3, 32, 32))
    assert not any(p.is_meta for p in view.parameters())
    view(torch.randn(2, 3, 32, 32))


def test_widths_per_stage():
    net = us3l.create("resnet18", num_classes=1000)
    costs = [us3l.cost(net, width) for width in ((0.5, 0.5, 0.5, 0.5), (0.5, 0.5, 0.5, 1.0), (1.0, 0.5, 0.5, 0.5))]
    assert costs[0] == us3l.cost(net, 0.5)
    assert costs[0].params < costs[2].params < costs[1].params  # the last stage has the parameters
    assert costs[0].macs < costs[1].macs < costs[2].macs  # the first has the large maps


def test_costs_are_read_without_torch():
    code = "import sys; from us3l.costs import Cost; Cost(1, 2, 3, 4); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_linear_layers_and_biases():
    assert us3l.cost(nn.Linear(10, 5), (10,)) == us3l.Cost(params=55, macs=50, macs_with_norms=50, bytes=220)


def test_a_batch_norm_of_one_value_is_still_refused():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        us3l.cost(nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, 8)), nn.BatchNorm1d(8)), (4, 1, 1))


def test_the_front_has_what_nothing_beats():
    points = [(3, 5), (1, 2), (2, 5), (2, 4), (4, 5), (1, 1), (5, 9)]
    front = {points[index] for index in pareto(points)}
    beaten = {(c, w) for c, w in points for d, v in points if d <= c and v >= w and (d, v) != (c, w)}
    assert front == set(points) - beaten
