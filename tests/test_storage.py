import json
import os
import stat
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import us3l


def own_family(width: float) -> nn.Module:
    hidden = round(8 * width)
    return nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden))


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8, min_width=0.5)
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), widths=[0.5, 0.62, (1.0, 0.5, 0.75, 0.5)])
    net.metadata = {"preprocessing": {"size": 8}}
    return net


@pytest.fixture
def saved(net, tmp_path):
    net.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.filterwarnings("ignore:width .* is not calibrated")
def test_a_loaded_model_is_the_saved_one(net, saved):
    loaded = us3l.load(saved)
    assert loaded.metadata == net.metadata
    assert loaded.min_width == 0.5
    images = torch.randn(4, 3, 8, 8)
    for width in (0.5, 0.62, (1.0, 0.5, 0.75, 0.5), 1.0):
        assert torch.equal(loaded.at(width)(images), net.at(width)(images))
        assert loaded.calibrated(width) == net.calibrated(width)
    mode = stat.S_IMODE(os.stat(saved / "weights.safetensors").st_mode)
    assert mode == stat.S_IMODE(os.stat(saved / "model.json").st_mode)


def test_switchable_norms_are_kept(tmp_path):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=16, switchable=(1.0, 0.5))
    with torch.no_grad():
        for parameter in net.norms.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    us3l.calibrate(net, torch.randn(8, 3, 8, 8))
    net.save(tmp_path / "model")
    loaded = us3l.load(tmp_path / "model")
    assert loaded.widths == [0.5, 1.0]
    images = torch.randn(4, 3, 8, 8)
    for width in loaded.widths:
        assert torch.equal(loaded.at(width)(images), net.at(width)(images))
        assert net.at(width)(images).any()


def test_the_folder_of_a_run_will_do(net, saved):
    assert torch.equal(us3l.load(saved.parent).full.conv1.weight, net.full.conv1.weight)


def test_channels_last_weights_are_saved_whole(net, tmp_path):
    net.to(memory_format=torch.channels_last)
    net.save(tmp_path / "model")
    assert torch.equal(us3l.load(tmp_path / "model").full.conv1.weight, net.full.conv1.weight)


@pytest.mark.filterwarnings("ignore:the weights have changed")
def test_an_existing_model_is_not_overwritten_unless_asked(net, saved):
    before = (saved / "weights.safetensors").read_bytes()
    with torch.no_grad():
        net.full.conv1.weight.zero_()
    with pytest.raises(us3l.UserError, match="already holds a model"):
        net.save(saved)
    assert (saved / "weights.safetensors").read_bytes() == before
    net.save(saved, overwrite=True)
    assert not us3l.load(saved).full.conv1.weight.any()
    with pytest.raises(us3l.UserError, match="it is a file"):
        net.save(saved / "model.json")


def test_a_users_own_family_must_be_given_again(tmp_path):
    net = us3l.Slimmable(own_family)
    us3l.calibrate(net, torch.randn(8, 4), widths=[0.5])
    net.save(tmp_path / "model")
    with pytest.raises(us3l.UserError, match="own_family"):
        us3l.load(tmp_path / "model")
    loaded = us3l.load(tmp_path / "model", family=own_family)
    images = torch.randn(3, 4)
    assert torch.equal(loaded.at(0.5)(images), net.at(0.5)(images))
    with pytest.raises(us3l.UserError, match="does not fit"):
        us3l.load(tmp_path / "model", family=lambda width: nn.Linear(4, round(8 * width)))


@pytest.mark.parametrize("name", ["weights.safetensors", "statistics.safetensors", "model.json"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_files_cut_short(saved, name, share):
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(us3l.UserError, match=name.replace(".", r"\.")):
        us3l.load(saved)


@pytest.mark.parametrize("name", ["weights.safetensors", "statistics.safetensors", "model.json"])
def test_missing_files(saved, name):
    (saved / name).unlink()
    with pytest.raises(us3l.UserError, match=name.replace(".", r"\.")):
        us3l.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"backbone": "resnet1"},
        {"backbone": ["resnet18"]},
        {"options": {"stem": "cifar", "nonsense": 1}},
        {"options": {"stem": "moon"}},
        {"options": {"stem": "cifar", "base": 16}},
        {"options": {"stem": "cifar", "base": "8"}},
        {"options": None},
        {"min_width": "narrow"},
        {"min_width": 3},
        {"metadata": 5},
    ],
)
def test_descriptions_that_make_no_sense(saved, change):
    description = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps(description | change))
    with pytest.raises(us3l.UserError):
        us3l.load(saved)


def test_weights_and_statistics_of_another_network(saved):
    weights = load_file(saved / "weights.safetensors")
    save_file(weights | {"extra": torch.zeros(1)}, saved / "weights.safetensors")
    with pytest.raises(us3l.UserError, match="extra"):
        us3l.load(saved)
    save_file(weights, saved / "weights.safetensors")
    save_file({"0.1/bn1.running_mean": torch.zeros(8)}, saved / "statistics.safetensors")
    with pytest.raises(us3l.UserError, match=r"0\.1"):
        us3l.load(saved)
    save_file({"wide/bn1.running_mean": torch.zeros(8)}, saved / "statistics.safetensors")
    with pytest.raises(us3l.UserError, match="wide"):
        us3l.load(saved)


widths = st.floats(min_value=0.1, max_value=1.0)


@settings(max_examples=60, deadline=None)
@given(min_width=st.just(1 / 3) | widths, others=st.lists(st.just(2 / 3) | widths, max_size=4))
def test_what_was_saved_can_be_loaded(tmp_path_factory, min_width, others):
    folder = tmp_path_factory.mktemp("model")
    net = us3l.Slimmable(own_family, min_width)
    chosen = [*(width for width in others if width >= min_width), min_width, 1.0]
    us3l.calibrate(net, torch.randn(4, 4), chosen)
    net.save(folder)
    loaded = us3l.load(folder, own_family)
    assert loaded.min_width == min_width
    assert all(loaded.calibrated(width) for width in chosen)
    switchable = {net.signature(width): width for width in chosen}.values()
    net = us3l.Slimmable(own_family, switchable=[*switchable])
    us3l.calibrate(net, torch.randn(4, 4))
    net.save(folder, overwrite=True)
    assert all(us3l.load(folder, own_family).calibrated(width) for width in net.widths)


def test_buffers_of_whole_numbers_are_kept(tmp_path):
    class Indexed(nn.Linear):
        def __init__(self, width):
            super().__init__(4, round(4 * width))
            self.register_buffer("index", torch.arange(4))

    net = us3l.Slimmable(Indexed)
    net.full.index.add_(1)
    net.save(tmp_path)
    assert us3l.load(tmp_path, Indexed).full.index.tolist() == [1, 2, 3, 4]
    weights = load_file(tmp_path / "weights.safetensors")
    save_file(weights | {"index": torch.zeros(4)}, tmp_path / "weights.safetensors")
    with pytest.raises(us3l.UserError, match="index holds"):
        us3l.load(tmp_path, Indexed)


def test_metadata_that_cannot_be_written_is_refused_before_anything_is(net, tmp_path):
    net.metadata = {"when": object()}
    with pytest.raises(us3l.UserError, match=r"net\.metadata must hold plain values"):
        net.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_statistics_that_do_not_fit_their_network_are_refused_when_used(saved):
    statistics = load_file(saved / "statistics.safetensors")
    del statistics["0.5/bn1.running_mean"]
    save_file(statistics, saved / "statistics.safetensors")
    with pytest.raises(us3l.UserError, match=r"width 0\.5 do not fit its network: bn1\.running_mean"):
        us3l.load(saved).at(0.5)
    save_file({"0.5/bn1.running_mean": torch.zeros(99)}, saved / "statistics.safetensors")
    with pytest.raises(us3l.UserError, match=r"does not fit its model\.json"):
        us3l.load(saved)


def test_too_many_switchable_widths_answer_at_once(saved):
    description = json.loads((saved / "model.json").read_text())
    for count, message in ((1000, "switchable widths than 100"), (50, "another number of switchable widths")):
        widths = [0.5 + 0.5 * (i + 1) / count for i in range(count)]
        (saved / "model.json").write_text(json.dumps(description | {"switchable": widths}))
        if count == 1000:
            norms = {f"{width}/bn1.bias": torch.zeros(1) for width in widths[:-1]}
            save_file(load_file(saved / "weights.safetensors") | norms, saved / "weights.safetensors")
        start = time.process_time()
        with pytest.raises(us3l.UserError, match=message):
            us3l.load(saved)
        assert time.process_time() - start < 5


def test_a_loaded_model_does_not_change_with_its_files(saved):
    """Statistics lay in the mapped file: written over they became others, and cutting it short ended the process."""
    loaded, images = us3l.load(saved), torch.randn(2, 3, 16, 16)
    before = loaded.at(0.5)(images)
    for name in ("weights.safetensors", "statistics.safetensors"):
        with open(saved / name, "r+b") as file:
            header = int.from_bytes(file.read(8), "little")
            file.seek(8 + header)
            file.write(bytes((saved / name).stat().st_size - 8 - header))
    assert torch.equal(loaded.at(0.5)(images), before)
