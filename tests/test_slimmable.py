import copy
import warnings

import pytest
import torch
from torch import nn

import us3l
from us3l.slimmable import batch_norms

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
