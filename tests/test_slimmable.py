import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import us3l
from us3l.slimmable import batch_norms
from us3l.tensors import leading

pytestmark = pytest.mark.filterwarnings("ignore:width .* is not calibrated")
RESNET18_WIDTHS = us3l.create("resnet18").widths


@pytest.fixture(scope="module")
def resnet18() -> us3l.Slimmable:
    torch.manual_seed(0)
    return us3l.create("resnet18", stem="cifar")


@pytest.fixture
def mini() -> us3l.Slimmable:
    torch.manual_seed(0)
    return us3l.create("resnet18", stem="cifar", base=16)


def leading_block(tensor, shape):
    return tensor[tuple(slice(n) for n in shape)]


@pytest.mark.parametrize("width", RESNET18_WIDTHS)
def test_shared_equals_carved_and_viewed_forward_and_backward(resnet18, width):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    shared = resnet18(images, width=width)
    carved = resnet18.carve(width).train()
    torch.testing.assert_close(carved(images), shared, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(resnet18.at(width)(images), shared, rtol=1e-5, atol=1e-5)

    resnet18.zero_grad()
    weights = torch.randn(shared.shape, generator=torch.Generator().manual_seed(2))
    (shared * weights).sum().backward()
    (carved(images) * weights).sum().backward()
    full = dict(resnet18.full.named_parameters())
    for name, parameter in carved.named_parameters():
        gradient = full[name].grad.clone()
        block = leading_block(gradient, parameter.shape)
        torch.testing.assert_close(block, parameter.grad, rtol=1e-4, atol=1e-4)
        block.zero_()
        assert not gradient.any(), f"{name} has a gradient outside of the block of width {width}"


def test_carved_network_has_its_own_contiguous_copy(mini):
    carved = mini.carve(0.5)
    for name, parameter in carved.named_parameters():
        whole = mini.full.get_parameter(name)
        assert parameter.is_contiguous()
        assert parameter.untyped_storage().nbytes() == parameter.numel() * 4
        assert parameter.data_ptr() != whole.data_ptr()


def test_at_shares_storage_and_follows_training(mini):
    view = mini.at(0.5)
    storages = {p.untyped_storage().data_ptr() for p in mini.full.parameters()}
    assert {p.untyped_storage().data_ptr() for p in view.parameters()} <= storages
    assert mini.at(0.5) is view
    images = torch.randn(4, 3, 8, 8)
    before = view(images)
    with torch.no_grad():
        for parameter in mini.full.parameters():
            parameter.add_(0.1)
    assert not torch.allclose(view(images), before)
    torch.testing.assert_close(view(images), mini(images, width=0.5))


def test_switching_among_all_widths_of_resnet18_allocates_no_weights(resnet18):
    own = {p.untyped_storage().data_ptr() for p in resnet18.full.parameters()}
    assert len(resnet18.widths) == 90
    for width in resnet18.widths:
        view = resnet18.at(width)
        assert {tensor.untyped_storage().data_ptr() for tensor in view.state_dict().values()} <= own
        assert resnet18.at(width) is view


def test_at_is_built_anew_when_the_weights_move(mini):
    view = mini.at(0.5)
    mini.double()
    assert mini.at(0.5) is not view
    assert mini.at(0.5)(torch.randn(2, 3, 8, 8, dtype=torch.float64)).dtype == torch.float64


def test_eval_mode_uses_the_statistics_of_calibration(mini):
    us3l.calibrate(mini, torch.randn(32, 3, 8, 8), widths=[0.5, 1.0])
    images = torch.randn(2, 3, 8, 8) + 1
    mini.eval()
    for width in (0.5, 1.0):
        torch.testing.assert_close(mini(images, width=width), mini.at(width)(images))
        torch.testing.assert_close(mini(images[:1], width=width), mini(images, width=width)[:1], rtol=1e-4, atol=1e-5)
        assert mini(images, width=width).requires_grad
    with_statistics = mini(images, width=0.5)
    mini.train()
    assert not torch.allclose(mini(images, width=0.5), with_statistics, atol=1e-2)


def test_running_statistics_are_not_kept_while_training(mini):
    mini.train()
    mini(torch.randn(4, 3, 8, 8), width=0.75)
    mini(torch.randn(4, 3, 8, 8))
    assert not any(name.endswith("running_mean") for name in mini.state_dict())


def test_uncalibrated_networks_warn(mini):
    with pytest.warns(UserWarning, match=r"0\.5 is not calibrated"):
        mini.at(0.5)
    us3l.calibrate(mini, torch.randn(8, 3, 8, 8), widths=[0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mini.at(0.5)


@pytest.mark.parametrize("width", [0.2, 1.01, float("nan"), 0.0, -1.0, (0.5, 0.5), (0.5, 0.5, 0.5, 2.0)])
def test_impossible_widths_are_refused(mini, width):
    with pytest.raises(us3l.UserError, match="width"):
        mini(torch.randn(2, 3, 8, 8), width=width)


def test_widths_per_stage(mini):
    images = torch.randn(4, 3, 8, 8)
    width = (0.25, 0.5, 0.75, 1.0)
    carved = mini.carve(width)
    torch.testing.assert_close(mini(images, width=width), carved(images), rtol=1e-5, atol=1e-5)
    channels = [carved.layer1[0].conv1.out_channels, carved.layer4[0].conv1.out_channels]
    assert channels == [8, 128]
    us3l.calibrate(mini, images, widths=[width])
    assert mini.calibrated(width)
    assert not mini.calibrated(0.5)


def test_canonical_widths_name_the_same_network(mini):
    for width in (0.25, 0.333, 0.371, 0.62, 0.999, 1.0):
        canonical = mini.canonical(width)
        assert canonical in mini.widths
        assert mini.signature(canonical) == mini.signature(width)
        assert mini.skeleton(width) is mini.skeleton(canonical)


def test_widths_as_people_give_them(mini):
    images = torch.randn(4, 3, 8, 8)
    expected = mini(images, width=0.5)
    for width in (np.float32(0.5), torch.tensor(0.5), (0.5,) * 4, [0.5] * 4):
        torch.testing.assert_close(mini(images, width=width), expected)
    us3l.calibrate(mini, images, widths=[[0.25, 0.5, 0.5, 0.25]])
    assert mini.calibrated((0.25, 0.5, 0.5, 0.25))
    assert mini.canonical((0.25, 0.5, 0.5, 0.25)) == us3l.Subnet((0.25, 0.5, 0.5, 0.25))
    us3l.calibrate(mini, images, widths=0.5)
    assert mini.calibrated(0.5)
    for nonsense in ("wide", None, [None] * 4, {}):
        with pytest.raises(us3l.UserError, match="is not a width"):
            mini(images, width=nonsense)


def own_family(width: float) -> nn.Module:
    hidden = round(20 * width)
    return nn.Sequential(nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 3))


def test_any_function_of_a_width_is_a_family():
    net = us3l.Slimmable(own_family)
    assert len(net.widths) == 16
    images = torch.randn(5, 6)
    torch.testing.assert_close(net(images, width=0.5), net.carve(0.5)(images))


def test_tied_parameters_and_other_buffers():
    class Tied(nn.Module):
        def __init__(self, width: float) -> None:
            super().__init__()
            n = round(8 * width)
            self.one, self.two = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
            self.two.weight = self.one.weight
            self.register_buffer("scale", torch.arange(1.0, n + 1), persistent=False)

        def forward(self, x):
            return self.two(self.one(x[:, : len(self.scale)])) * self.scale

    net = us3l.Slimmable(Tied)
    images = torch.randn(3, 8)
    carved = net.carve(0.5)
    assert carved.one.weight is carved.two.weight
    weight = net.full.one.weight[:4, :4]
    torch.testing.assert_close(net(images, width=0.5), images[:, :4] @ weight.T @ weight.T * torch.arange(1.0, 5.0))
    torch.testing.assert_close(carved(images), net(images, width=0.5))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (lambda w: nn.Linear(4, round(4 / w)), r"'weight' has shape \(8, 4\) at width 0.5.*\(4, 4\) at width 1"),
        (lambda w: nn.Linear(4, 4, bias=w < 1), "'bias' exists at width 0.5 but not at width 1"),
        (lambda w: nn.Conv1d(4, 4, 1) if w == 1 else nn.Linear(4, 4), r"'weight' has shape \(4, 4\)"),
    ],
)
def test_families_that_are_not_nested_are_refused(family, message):
    with pytest.raises(us3l.UserError, match=message):
        us3l.Slimmable(family)(torch.randn(2, 4), width=0.5)


def segmented_family(parts):
    def family(width):
        return nn.Linear(4, 3 * round(8 * width), bias=False)

    family.segments = lambda _: parts  # type: ignore[attr-defined]
    return family


def test_segments_are_sliced_each_on_their_own():
    net = us3l.Slimmable(segmented_family((3,)))
    rows = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]
    assert torch.equal(net.carve(0.5).weight, net.full.weight[rows])
    net(torch.ones(2, 4), width=0.5).sum().backward()
    assert net.full.weight.grad.any(1).nonzero().flatten().tolist() == rows


@pytest.mark.parametrize("parts", [(5,), (1, 1, 2)])
def test_segments_that_do_not_fit_are_refused(parts):
    with pytest.raises(us3l.UserError, match=r"segments do not fit: 'weight' has shape \(12, 4\).*\(24, 4\)"):
        us3l.Slimmable(segmented_family(parts)).carve(0.5)


SWITCHABLE = (1.0, 0.75, 0.5, 0.25)


@pytest.fixture
def switchable() -> us3l.Slimmable:
    torch.manual_seed(0)
    return us3l.create("resnet18", stem="cifar", base=32, switchable=SWITCHABLE)


def test_switchable_norms_are_each_widths_own(switchable):
    assert switchable.widths == sorted(SWITCHABLE)
    norms = sum(
        2 * norm.num_features for width in (0.25, 0.5, 0.75) for norm in batch_norms(switchable.at(width)).values()
    )
    counts = [sum(p.numel() for p in part.parameters()) for part in (switchable, switchable.full)]
    assert counts[0] - counts[1] == norms

    images = torch.randn(4, 3, 8, 8)
    before = {width: switchable(images, width=width) for width in SWITCHABLE}
    optimiser = torch.optim.SGD(switchable.parameters(), lr=1.0)
    switchable(images, width=0.5).square().sum().backward()
    for name, parameter in switchable.full.named_parameters():
        if "conv" in name or "downsample.0" in name:
            parameter.grad = None  # so that the step changes norms only
    optimiser.step()
    changed = [width for width in SWITCHABLE if not torch.equal(switchable(images, width=width), before[width])]
    assert changed == [0.5]


def test_switchable_networks_are_carved_viewed_calibrated_and_copied(switchable):
    with torch.no_grad():
        for parameter in switchable.norms.parameters():
            parameter.add_(torch.rand_like(parameter))
    images = torch.randn(8, 3, 8, 8)
    plain = us3l.Slimmable(switchable.family)
    plain.full.load_state_dict(switchable.full.state_dict())
    us3l.calibrate(switchable, images)
    assert all(switchable.calibrated(width) for width in SWITCHABLE)
    switchable.eval()
    twin = copy.deepcopy(switchable)
    for width in SWITCHABLE:
        expected = switchable(images, width=width)
        torch.testing.assert_close(switchable.carve(width)(images), expected)
        torch.testing.assert_close(switchable.at(width)(images), expected)
        torch.testing.assert_close(twin(images, width=width), expected)
        assert torch.allclose(switchable.train()(images, width=width), plain(images, width=width)) == (width == 1.0)
        switchable.eval()
    own = {p.untyped_storage().data_ptr() for p in switchable.parameters()}
    assert {p.untyped_storage().data_ptr() for p in switchable.at(0.5).parameters()} <= own


def test_other_widths_than_the_switchable_ones_are_refused(switchable):
    with pytest.raises(
        us3l.UserError, match=r"0\.6 is none of this network's switchable widths, 0\.25, 0\.5, 0\.75, 1"
    ):
        switchable.at(0.6)
    with pytest.raises(us3l.UserError, match="must include 1"):
        us3l.create("resnet18", switchable=(0.5, 0.25))
    with pytest.raises(us3l.UserError, match="mean the same network"):
        us3l.create("resnet18", base=8, switchable=(1.0, 0.999))


def test_a_plain_state_dict_must_fit(mini):
    state = mini.family(1.0).state_dict()
    us3l.calibrate(mini, torch.randn(4, 3, 8, 8), [0.5])
    for change, message in [
        ({"bn1.bias": None}, r"missing bn1\.bias \(16,\)"),
        ({"fc.weight": torch.zeros(3)}, r"unexpected fc\.weight \(3,\)"),
        ({"conv1.weight": torch.zeros(2, 2)}, r"conv1\.weight is \(2, 2\) but should be \(16, 3, 3, 3\)"),
        ({"bn1.running_var": None}, r"missing bn1\.running_var"),
    ]:
        changed = {name: tensor for name, tensor in (state | change).items() if tensor is not None}
        with pytest.raises(us3l.UserError, match=message) as error:
            mini.load_plain(changed)
        assert "\n" not in str(error.value)
    assert mini.calibrated(0.5)
    mini.load_plain(state)
    assert mini.calibrated(1.0)
    assert not mini.calibrated(0.5)  # those statistics were of other weights
    mini.load_plain({name: tensor for name, tensor in state.items() if "running" not in name})
    assert not mini.calibrated(1.0)


def test_norms_of_all_widths_start_from_a_plain_state_dict(switchable):
    state = switchable.family(1.0).state_dict()
    state["bn1.bias"] += torch.arange(32)
    switchable.load_plain(state)
    assert torch.equal(switchable.slices(0.5)["bn1.bias"], torch.arange(16.0))


def test_families_that_cannot_serve_are_refused():
    with pytest.raises(us3l.UserError, match="is int"):
        us3l.Slimmable(lambda _: 5)
    with pytest.raises(us3l.UserError, match="is ReLU"):
        us3l.Slimmable(lambda _: nn.ReLU())

    def looks_at_values(width):
        return nn.Linear(4, int(torch.linspace(0, 8 * width, 2)[-1].item()))

    with pytest.raises(us3l.UserError, match="must not look at the values"):
        us3l.Slimmable(looks_at_values)(torch.randn(2, 4), width=0.5)


def test_a_copy_is_independent(mini):
    mini.at(0.5)
    twin = copy.deepcopy(mini)
    with torch.no_grad():
        twin.full.conv1.weight.zero_()
    images = torch.randn(2, 3, 8, 8)
    assert not torch.allclose(twin.at(0.5)(images), mini.at(0.5)(images))
    torch.testing.assert_close(twin.at(0.5)(images), twin(images, width=0.5))


def test_skeletons_take_no_memory_and_no_randomness(mini):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    skeleton = mini.skeleton(0.66)
    assert all(p.is_meta for p in skeleton.parameters())
    assert torch.equal(before, torch.get_rng_state())
    assert len(batch_norms(skeleton)) == 20


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_training_takes_dense_copies_that_learn_as_views_do(format):
    torch.manual_seed(0)
    wide = torch.randn(12, 8, 3, 3).to(memory_format=format).requires_grad_()
    for shape, segments in (((6, 4, 3, 3), ()), ((6, 8, 3, 3), (3,)), ((8, 4, 3, 3), (4, 2)), ((12, 2, 3, 3), ())):
        view, copy = (leading(wide, torch.Size(shape), segments, copy) for copy in (False, True))
        assert torch.equal(view, copy)
        towards = torch.randn(shape).to(memory_format=format)
        ours, theirs = (torch.autograd.grad(block, wide, towards)[0] for block in (copy, view))
        assert torch.equal(ours, theirs)
        if not segments:
            assert copy.is_contiguous(memory_format=format)
            assert ours.stride() == wide.stride()  # so that it becomes `.grad` without another copy


def test_only_what_learns_takes_copies():
    net = us3l.Slimmable(lambda width: nn.Conv2d(3, round(8 * width), 3))
    taken, slices = [], net.slices
    net.slices = lambda width, copy: taken.append(slices(width, copy)["weight"]) or slices(width, copy)
    net.bind(0.5)
    with torch.no_grad():
        net.bind(0.5)
    assert [tensor.data_ptr() == net.full.weight.data_ptr() for tensor in taken] == [False, True]


def test_finding_the_widths_of_a_family_without_signature_is_bounded_and_says_what_it_does(monkeypatch):
    built = []

    def many(width):
        built.append(width)
        return nn.Linear(4, round(100_000 * width))

    net = us3l.Slimmable(many)
    monkeypatch.setattr("us3l.width.PATIENCE", 0)
    with pytest.warns(UserWarning, match=r"give the family a `signature\(width\)`") as told:
        assert 700 < len(net.widths) < 1100
    assert len(told) == 1
    assert len(built) < 2500
    assert len(net.widths) == len({net.signature(width) for width in net.widths})


class Drawn(TorchDispatchMode):
    """Counts the operations that draw random values."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.uniform_, torch.ops.aten.normal_)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet_v2", "vit_tiny"])
def test_skeletons_are_built_without_drawing_weights(backbone):
    with torch.device("meta"), Drawn() as drawn:
        net = us3l.create(backbone)
    assert drawn.count > 10
    with Drawn() as drawn:
        assert next(net.skeleton(0.5).parameters()).is_meta
    assert drawn.count == 0
