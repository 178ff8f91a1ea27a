"""Statistics know the weights they belong to: after any change of these they are refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import us3l
from us3l.runtime.runtime import Runtime
from us3l.storage import read_torch


def family(width: float) -> nn.Module:
    channels = round(8 * width)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@pytest.fixture
def images() -> Tensor:
    return torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net(images: Tensor) -> us3l.Slimmable:
    torch.manual_seed(0)
    net = us3l.Slimmable(family)
    us3l.calibrate(net, images, [0.5, 1.0])
    return net


def step(optimiser: Callable[..., torch.optim.Optimizer], **options: object) -> Callable[[us3l.Slimmable], None]:
    def train(net: us3l.Slimmable) -> None:
        own = optimiser(net.parameters(), lr=0.1, **options)
        net.train()(torch.randn(4, 3, 8, 8), width=0.5).square().sum().backward()
        own.step()

    return train


@torch.no_grad()
def edit(net: us3l.Slimmable) -> None:
    net.full[0].weight[0, 0, 0, 0] += 1


def load_other(net: us3l.Slimmable) -> None:
    net.load_state_dict(us3l.Slimmable(family).state_dict())


def set_data(net: us3l.Slimmable) -> None:
    net.full[0].weight.data = net.full[0].weight.data + 1


def replace(net: us3l.Slimmable) -> None:
    net.full[0].weight = nn.Parameter(net.full[0].weight.detach() + 1)


CHANGES = {
    "sgd": step(torch.optim.SGD, foreach=False),
    "foreach": step(torch.optim.SGD, foreach=True, momentum=0.9),
    "adamw": step(torch.optim.AdamW),
    "fused": step(torch.optim.AdamW, fused=True),
    "edit": edit,
    "load_state_dict": load_other,
    "data": set_data,
    "in data": lambda net: net.full[0].weight.data.add_(1),
    "replace": replace,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_statistics_of_other_weights_are_refused(
    net: us3l.Slimmable, images: Tensor, change: Callable[[us3l.Slimmable], None]
) -> None:
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    net.at(0.5)
    change(net)
    assert not net.calibrated(0.5)
    for use in (net.at, net.carve, net.eval().bind, lambda width: Runtime(net).embed(images[:1].byte(), width=width)):
        with pytest.raises(us3l.UserError, match="calibrate"):
            use(0.5)
    net.train()(images, width=0.5)  # on the statistics of the batch
    us3l.calibrate(net, images, [0.5])
    torch.testing.assert_close(net.at(0.5)(images), net.eval()(images, width=0.5))
    torch.testing.assert_close(net.at(0.5)(images), net.carve(0.5)(images))
    with pytest.raises(us3l.UserError, match=r"changed since width 1\.0 was calibrated"):
        net.at(1.0)
    net.forget_calibration()
    with pytest.warns(UserWarning, match="not calibrated"):
        net.at(1.0)


def test_what_leaves_the_weights_as_they_are_leaves_the_statistics(net: us3l.Slimmable, images: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = net.at(0.5)(images)
        net.load_state_dict(net.state_dict())
        for twin in (net, copy.deepcopy(net), net.to(memory_format=torch.channels_last), net.requires_grad_(False)):
            torch.testing.assert_close(twin.at(0.5)(images), expected)
        torch.testing.assert_close(net.double().at(0.5)(images.double()), expected.double())
        assert net.half().calibrated(0.5)


def test_weights_under_inference_mode(images: Tensor) -> None:
    with torch.inference_mode():
        net = us3l.Slimmable(family)
        us3l.calibrate(net, images, [0.5])
        net.at(0.5)(images)


def test_a_state_dict_carries_the_calibration(net: us3l.Slimmable, images: Tensor, tmp_path: Path) -> None:
    learner = nn.ModuleDict({"net": net})
    assert all(isinstance(value, Tensor) for value in learner.state_dict().values())
    torch.save(learner.state_dict(), tmp_path / "state.pt")
    again = nn.ModuleDict({"net": us3l.Slimmable(family)})
    us3l.calibrate(again["net"], images, [0.25])
    again.load_state_dict(read_torch(tmp_path / "state.pt"))
    loaded = again["net"]
    assert isinstance(loaded, us3l.Slimmable)
    assert [loaded.calibrated(width) for width in (0.25, 0.5, 1.0)] == [False, True, True]
    assert torch.equal(loaded.at(0.5)(images), net.at(0.5)(images))


def test_a_state_dict_without_calibration_loads_too(net: us3l.Slimmable) -> None:
    other = us3l.Slimmable(family)
    old = {name: tensor for name, tensor in net.state_dict().items() if "statistics" not in name}
    assert len(old) == 4
    other.load_state_dict(old)
    assert not other.calibrated(0.5)


def test_damaged_calibration_in_a_state_dict(net: us3l.Slimmable) -> None:
    for name in ("statistics.wide/x", "statistics.0.1/x"):
        with pytest.raises(RuntimeError, match="do not fit"):
            us3l.Slimmable(family).load_state_dict(net.state_dict() | {name: torch.zeros(1)})


def test_exchanged_files_are_noticed(net: us3l.Slimmable, tmp_path: Path) -> None:
    net.save(tmp_path)
    assert us3l.load(tmp_path, family).calibrated(0.5)
    weights = load_file(tmp_path / "weights.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, tmp_path / "weights.safetensors")
    loaded = us3l.load(tmp_path, family)
    assert not loaded.calibrated(0.5)
    with pytest.raises(us3l.UserError, match="calibrate"):
        loaded.at(0.5)


def test_files_of_earlier_versions_do_not_name_the_weights(net: us3l.Slimmable, tmp_path: Path) -> None:
    net.save(tmp_path)
    save_file(load_file(tmp_path / "statistics.safetensors"), tmp_path / "statistics.safetensors")
    assert us3l.load(tmp_path, family).calibrated(0.5)


def test_stale_statistics_are_not_saved(net: us3l.Slimmable, images: Tensor, tmp_path: Path) -> None:
    net.full[0].weight.data[-1, -1, -1, -1].add_(1)  # which nobody notices before
    assert net.calibrated(0.5)
    with pytest.warns(UserWarning, match="since 2 widths were calibrated"):
        net.save(tmp_path)
    assert not len(us3l.load(tmp_path, family).calibrations)
    us3l.calibrate(net, images, [0.5, 1.0])
    net.save(tmp_path, overwrite=True)
    assert us3l.load(tmp_path, family).calibrated(1.0)


def test_a_model_of_half_precision_keeps_its_calibration(net: us3l.Slimmable, tmp_path: Path) -> None:
    net.bfloat16().save(tmp_path)
    assert us3l.load(tmp_path, family).calibrated(0.5)


def test_changes_without_notice_are_seen_after_calibrating_again(net: us3l.Slimmable, images: Tensor) -> None:
    net.full[0].weight.data[-1, -1, -1, -1].add_(1)
    us3l.calibrate(net, images, [0.5])
    assert net.calibrated(0.5)
    assert not net.calibrated(1.0)
