"""Any pretrained network as the teacher of all widths, seen in its own way."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import us3l
from us3l.commands.main import main
from us3l.data.augment import normalise
from us3l.run.checkpoints import load_checkpoint
from us3l.system.errors import UserError
from us3l.training.initial import open_pretrained, without_classifier
from us3l.training.recipes import MINI, Network
from us3l.training.run_config import config_of
from us3l.training.run_networks import TeacherView, new_network, new_networks, new_teacher, open_teacher
from us3l.training.trainer import Trainer

TINY: dict[str, Any] = {"images": 32, "batch_size": 16, "max_steps": 4, "calibration": 16, "size": 16, "min_width": 0.5}
TINY |= {"calibrated_widths": (0.5,)}
RECIPE = replace(MINI.with_method("imitate"), views=replace(MINI.views, size=16), network=Network(base=16))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The file of a small pretrained MobileNetV2."""
    torch.manual_seed(0)
    net = us3l.create("mobilenet_v2", base=16)
    us3l.calibrate(net, torch.randn(32, 3, 16, 16), [1.0])
    path = tmp_path_factory.mktemp("weights") / "mobile.safetensors"
    save_file(net.carve(1.0).state_dict(), path)
    return path


class Bright(nn.Module):
    """The mean of each channel: images to vectors of three numbers."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


class Sized(Bright):
    def __init__(self):
        super().__init__()
        self.image_size = 8

    def forward(self, images):
        assert images.shape[-1] == 8, images.shape
        return super().forward(images)


@torch.no_grad()
def test_a_teacher_sees_the_views_in_its_own_way():
    pixels = torch.rand(2, 3, 16, 16)
    views = normalise(pixels, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    recipe = replace(RECIPE, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), teacher="<Bright>")
    expected = normalise(pixels).mean(dim=(2, 3))  # ImageNet's, as nothing else is known of it
    torch.testing.assert_close(open_teacher(recipe, Bright())(views), expected, rtol=1e-5, atol=1e-5)
    assert not isinstance(open_teacher(replace(RECIPE, teacher="<Bright>"), Bright()), TeacherView)

    sized = open_teacher(recipe, Sized())
    small = F.interpolate(pixels, (8, 8), mode="bilinear", antialias=True)
    torch.testing.assert_close(sized(views), normalise(small).mean(dim=(2, 3)), rtol=1e-4, atol=1e-4)
    asked = open_teacher(replace(recipe, teacher_size=8), Bright())
    assert torch.equal(asked(views), sized(views))
    assert not sized.state_dict()


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet34", "convnext_tiny", "vit_b_16"])
def test_networks_of_libraries_lose_their_last_layer(name):
    """RunNetworks that are none of ours, without memory: only shapes are looked at."""
    with torch.device("meta"):
        network = without_classifier(torchvision.models.get_model(name)).eval()
        assert network(torch.zeros(2, 3, 224, 224)).shape == (2, {"resnet34": 512}.get(name, 768))


def test_a_timm_network_teaches_at_its_only_size(monkeypatch):
    network = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    monkeypatch.setattr(timm, "create_model", lambda *_, pretrained: network if pretrained else None)
    teacher = open_teacher(replace(RECIPE, teacher="timm:vit_tiny_patch16_224"))
    assert isinstance(teacher, TeacherView)
    assert teacher.size == 32
    assert teacher(torch.zeros(2, 3, 16, 16)).shape == (2, 192)
    assert network.head.out_features == 1000  # that of the library stays as it is


@torch.no_grad()
def test_a_file_and_the_source_itself_teach_the_same(weights):
    source = open_pretrained(weights)
    recipe = replace(RECIPE, network=replace(RECIPE.network, backbone="mobilenet_v2", stem="imagenet"), init="w")
    images = torch.randn(4, 3, 16, 16)
    named = new_teacher(replace(recipe, teacher=str(weights)))
    itself = new_teacher(recipe, source=source)  # by default
    assert named is not None
    assert itself is not None
    expected = named(images)
    torch.testing.assert_close(itself.eval()(images), expected, rtol=1e-4, atol=1e-5)
    net = new_network(recipe, source=source)
    torch.testing.assert_close(net.eval()(images), expected, rtol=1e-4, atol=1e-5)

    alone = new_network(replace(recipe, network=replace(recipe.network, individual=0.5)), source=source)
    for name, tensor in alone.full.named_parameters():  # begins with its part of the pretrained network
        assert torch.equal(tensor, net.shared_slices(0.5)[name]), name


@torch.no_grad()
def test_the_source_itself_teaches_at_the_size_that_is_asked_for(weights):
    source, images = open_pretrained(weights), torch.randn(2, 3, 16, 16)
    network = replace(RECIPE.network, backbone="mobilenet_v2", stem="imagenet")
    recipe = replace(RECIPE, network=network, init="w", teacher_size=48)
    taught = new_networks(recipe, source=source).pretrained_teacher
    larger = F.interpolate(images, (48, 48), mode="bilinear", antialias=True)
    usual = new_networks(replace(recipe, teacher_size=None), source=source).pretrained_teacher
    assert torch.equal(taught(images), usual(larger))
    resumed = new_networks(recipe).pretrained_teacher  # its weights come with the checkpoint
    assert resumed.state_dict().keys() == taught.state_dict().keys()


def test_a_run_that_imitates_its_source_resumes_without_it(tmp_path, monkeypatch):
    weights = tmp_path / "resnet.safetensors"
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(32, 3, 16, 16), [1.0])
    save_file(net.carve(1.0).state_dict(), weights)
    settings = {**TINY, "method": "imitate", "recipe": "mini", "init": weights}
    whole = us3l.pretrain("digits", tmp_path / "whole", **settings)
    assert config_of(whole).recipe.teacher == "init"

    step = Trainer.train_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", lambda self: step(self) if self.step < 3 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            us3l.pretrain("digits", tmp_path / "run", **settings)
    weights.unlink()
    run = us3l.pretrain(out=tmp_path / "run", resume=True)
    ours, theirs = (load_checkpoint(each.checkpoints)[0]["learner"] for each in (run, whole))
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("pretrained_teacher.") for name in ours)
    assert ours["a.weight"].shape == (64, 64)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert run.network.digest == whole.network.digest
    assert not run.projector.exists()


def test_a_network_in_memory_must_be_given_again(tmp_path, monkeypatch):
    settings = {**TINY, "method": "us3l-imitate", "recipe": "mini", "base": 8, "hidden": 16, "predictor": 16, "dim": 8}
    step = Trainer.train_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", lambda self: step(self) if self.step < 2 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            us3l.pretrain("digits", tmp_path / "run", teacher=Bright(), **settings)
    with pytest.raises(UserError, match="imitates a network in memory, <Bright>: give it again"):
        us3l.pretrain(out=tmp_path / "run", resume=True)
    run = us3l.pretrain(out=tmp_path / "run", resume=True, teacher=Bright())
    assert run.finished
    assert run.projector.exists()


class Pair(nn.Module):
    def forward(self, images):
        return images, images


class Broken(nn.Module):
    def forward(self, images):
        raise IndexError(f"not {images.shape[-1]} pixels")


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (nn.Conv2d(3, 4, 3), r"<Conv2d> makes a tensor of shape \(2, 4, 14, 14\)"),
        (Pair(), "<Pair> makes a tuple"),
        (Broken(), r"<Broken> cannot look at images of 16 pixels \(IndexError: not 16 pixels\): set `teacher_size`"),
        ("torchvision:resnet19", "torchvision has no network 'resnet19'"),
        ("nowhere", "there is no 'nowhere' to start from"),
    ],
)
def test_bad_teachers_are_one_clear_line_and_leave_nothing(teacher, message, tmp_path):
    with pytest.raises(UserError, match=message) as told:
        us3l.pretrain("digits", tmp_path / "run", teacher=teacher, method="imitate", recipe="mini", **TINY)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_teachers_where_they_belong(weights, tmp_path, capsys):
    def refused(*flags: str) -> str:
        assert main(["pretrain", "digits", "--out", str(tmp_path / "run"), *flags]) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    assert "say which: --teacher" in refused("--method", "imitate")
    assert "has no use for --teacher" in refused("--teacher", str(weights))
    assert "has none: leave it out" in refused("--teacher-size", "24")
    assert "say which, --init" in refused("--teacher", "init", "--method", "imitate")
    save_file({"some.weight": torch.ones(2, 2)}, tmp_path / "other.safetensors")
    other = str(tmp_path / "other.safetensors")
    assert "weights of a network that us3l does not know" in refused("--teacher", other, "--method", "imitate")
