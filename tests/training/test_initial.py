"""A run that begins with a pretrained network: whatever it is given as, width 1 answers as that does."""

import os
import pickle
from dataclasses import replace
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn

import us3l
from us3l.commands.main import main
from us3l.run.checkpoints import load_checkpoint
from us3l.system.errors import UserError
from us3l.training.initial import open_pretrained
from us3l.training.run_config import RunConfig, config_of
from us3l.training.run_networks import new_network
from us3l.training.trainer import Trainer

TINY: dict[str, Any] = {"images": 32, "batch_size": 16, "max_steps": 2, "calibration": 16, "size": 16, "min_width": 0.5}
TINY |= {"hidden": 16, "predictor": 16, "dim": 8, "calibrated_widths": (0.5,)}


def uneven(network: nn.Module) -> nn.Module:
    """A network whose batch norms are not at their start."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_(std=0.1)
    return network.eval()


def scaled(network: nn.Module) -> nn.Module:
    """A network whose blocks count: at first their outputs are multiplied by a millionth."""
    for name, parameter in network.named_parameters():
        if name.endswith(".gamma"):
            parameter.data.uniform_(0.1, 0.5)
    return network


def vit() -> nn.Module:
    return torchvision.models.VisionTransformer(32, 16, 2, 3, 192, 768, num_classes=5)


OTHERS = {
    "torchvision resnet18": (lambda: torchvision.models.resnet18(num_classes=5), "fc"),
    "torchvision resnet50": (lambda: torchvision.models.resnet50(num_classes=5), "fc"),
    "torchvision mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(num_classes=5), "classifier"),
    "torchvision vit": (vit, "heads"),
    "timm mobilenet_v2": (lambda: timm.create_model("mobilenetv2_100", num_classes=5), "classifier"),
    "timm efficientnet_b0": (lambda: timm.create_model("efficientnet_b0", num_classes=5), "classifier"),
    "timm convnext_atto": (lambda: scaled(timm.create_model("convnext_atto", num_classes=5)), "head.fc"),
    "timm vit": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5), "head"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
def test_width_1_answers_as_the_source_does(name):
    torch.manual_seed(0)
    build, classifier = OTHERS[name]
    theirs = uneven(build())
    images = torch.randn(4, 3, 32, 32)
    source = open_pretrained(theirs)
    theirs.set_submodule(classifier, nn.Identity())
    expected = theirs(images)

    recipe = source.configure(RunConfig()).recipe
    assert recipe.network.backbone == {"vit": "vit_tiny"}.get(name.split()[1], name.split()[1])
    recipe = replace(recipe, views=replace(recipe.views, size=32))
    net = new_network(recipe)
    source.put_into(net)
    torch.testing.assert_close(net.eval()(images), expected, rtol=1e-5, atol=1e-5)

    net = new_network(recipe, source=source).eval()  # with its channels in order: a ResNet's or ViT's features too
    found = net(images)
    near = {"rtol": 1e-4, "atol": 1e-4 * float(expected.abs().max())}
    torch.testing.assert_close(found.sort().values, expected.sort().values, **near)
    if "mobilenet" in name:
        torch.testing.assert_close(found, expected, **near)


@torch.no_grad()
def test_the_real_mobilenet_answers_as_torchvisions(shared_data):
    path = shared_data / "weights" / "mobilenet_v2-imagenet1k.safetensors"
    if not path.exists():
        pytest.skip("there are no real weights in ../shared/data")
    theirs = torchvision.models.mobilenet_v2()
    theirs.load_state_dict(load_file(path))
    theirs.eval().classifier = nn.Identity()
    source = open_pretrained(path)
    recipe = source.configure(RunConfig()).recipe
    net = new_network(recipe)
    source.put_into(net)
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(net.eval()(images), theirs(images), rtol=1e-5, atol=1e-5)
    in_order = new_network(recipe, source=source).eval()
    torch.testing.assert_close(in_order(images), theirs(images), rtol=1e-4, atol=1e-4)
    assert not torch.equal(in_order.full.features[1].conv[1].weight, net.full.features[1].conv[1].weight)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Where the weights of a small MobileNetV2 lie, as a state dict, as a checkpoint and as a model of ours."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    net = us3l.create("mobilenet_v2", base=16)
    net.metadata = {"preprocessing": {"size": 16, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1]}}
    us3l.calibrate(net, torch.randn(32, 3, 16, 16), [1.0])
    state = net.carve(1.0).state_dict() | {
        "classifier.1.weight": torch.zeros(5, 320),
        "classifier.1.bias": torch.ones(5),
    }
    save_file(state, folder / "a.safetensors")
    torch.save(state, folder / "b.pth")
    torch.save({"epoch": 3, "state_dict": state}, folder / "c.pth")
    net.save(folder / "model")
    return folder


def test_files_and_folders_hold_the_same(small):
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    net = us3l.load(small / "model").eval()
    for name in ("a.safetensors", "b.pth", "c.pth", "model"):
        source = open_pretrained(small / name)
        assert source.in_order == (name == "model")
        recipe = source.configure(RunConfig()).recipe
        assert (recipe.init, recipe.network.backbone, recipe.network.base) == (str(small / name), "mobilenet_v2", 16)
        assert recipe.network.stem == "imagenet"
        assert recipe.mean == ((0.5, 0.4, 0.3) if name == "model" else (0.485, 0.456, 0.406))
        started = new_network(recipe, source=source).eval()
        torch.testing.assert_close(started(images), net(images), rtol=1e-4, atol=1e-4)
        same = torch.equal(started.full.features[17].conv[2].weight, net.full.features[17].conv[2].weight)
        assert same == (name == "model")  # whose leading channels are sub-networks already


def test_libraries_say_how_they_see_images(tmp_path, monkeypatch):
    """Their weights lie in the cache already."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    weights = torchvision.models.get_model_weights("mobilenet_v2").DEFAULT
    (tmp_path / "checkpoints").mkdir()
    torch.save(torchvision.models.mobilenet_v2().state_dict(), tmp_path / "checkpoints" / os.path.basename(weights.url))
    source = open_pretrained("torchvision:mobilenet_v2")
    assert (source.name, source.mean) == ("torchvision:mobilenet_v2", (0.485, 0.456, 0.406))
    assert source.configure(RunConfig()).recipe.network.base == 64

    network = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    monkeypatch.setattr(timm, "create_model", lambda *_, pretrained: network if pretrained else None)
    source = open_pretrained("timm:vit_tiny_patch16_224")
    assert (source.mean, source.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_a_run_begins_with_it_and_never_needs_it_again(tmp_path, monkeypatch):
    weights = tmp_path / "w.safetensors"
    save_file(us3l.create("resnet18", stem="cifar", base=8).full.state_dict(), weights)
    folder = tmp_path / "run"
    sha256 = open_pretrained(weights).sha256
    seen = []

    def killed(trainer):
        seen.append(trainer.learner.net.digest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("us3l.training.trainer.Trainer.train_step", killed)
        patch.setattr("us3l.run.folder.Run.abandon", lambda _: None)  # as a kill would leave it
        with pytest.raises(KeyboardInterrupt):
            us3l.pretrain("digits", folder, init=weights, mean=(0.5, 0.5, 0.5), **TINY)
    config = config_of(us3l.Run(folder))
    assert (config.recipe.init, config.init_sha256) == (str(weights), sha256)
    assert (config.recipe.network.stem, config.recipe.network.base) == ("cifar", 8)
    assert load_checkpoint(us3l.Run(folder).checkpoints)[0]["step"] == 0

    weights.unlink()
    first = Trainer.train_step
    monkeypatch.setattr(
        "us3l.training.trainer.Trainer.train_step",
        lambda trainer: (seen.append(trainer.learner.net.digest), first(trainer))[1],
    )
    run = us3l.pretrain(out=folder, resume=True)
    assert run.finished
    assert seen[0] == seen[1]  # the weights before the first step
    kept = run.network.metadata["preprocessing"]
    assert (kept["mean"], kept["std"]) == ([0.5, 0.5, 0.5], [0.229, 0.224, 0.225])
    with pytest.raises(UserError, match="keeps its settings"):
        us3l.pretrain(out=folder, resume=True, init="torchvision:resnet18")


def test_a_network_in_memory_must_be_given_again_until_there_is_a_checkpoint(tmp_path, monkeypatch):
    net = us3l.create("resnet18", stem="cifar", base=8)
    other = us3l.create("resnet18", stem="cifar", base=8)
    with monkeypatch.context() as patch:
        patch.setattr("us3l.training.loop.save_checkpoint", lambda *_: os.kill)
        patch.setattr("us3l.training.trainer.Trainer.train_step", lambda _: 1 / 0)
        patch.setattr("us3l.run.folder.Run.abandon", lambda _: None)
        with pytest.raises(ZeroDivisionError):
            us3l.pretrain("digits", tmp_path / "run", init=net, **TINY)
    with pytest.raises(UserError, match=r"network in memory, <resnet18>: give it again"):
        us3l.pretrain(out=tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="has other weights than those"):
        us3l.pretrain(out=tmp_path / "run", resume=True, init=other)
    assert us3l.pretrain(out=tmp_path / "run", resume=True, init=net).finished


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def no_network(*_, **__):
    raise URLError("[Errno -3] Temporary failure in name resolution")


def hostile(folder, monkeypatch):
    """Bad starts, and what is said about each."""
    torch.save({"a": Harmful()}, folder / "code.pth")
    (folder / "old.pth").write_bytes(pickle.dumps(Harmful()))
    save_file({"conv1.weight": torch.ones(2, 2)}, folder / "other.safetensors")
    save_file({"conv1.weight": torch.full((2, 2), torch.nan)}, folder / "nan.safetensors")
    torch.save([1, 2], folder / "list.pth")
    (folder / "empty").mkdir()
    monkeypatch.setattr(torch.hub, "_hub_dir", str(folder / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    monkeypatch.setattr(timm, "create_model", no_network)
    return {
        "code.pth": "holds more than tensors and plain values",
        "old.pth": "cannot read old.pth: File is not a zip file",
        "list.pth": "does not hold a state dict",
        "nan.safetensors": "conv1.weight holds values that are not finite",
        "other.safetensors": "missing bn1.weight (16,)",
        "nothing.safetensors": "there is no 'nothing.safetensors' to start from",
        "empty": "empty holds no model",
        "torchvision:resnet19": "torchvision has no network 'resnet19': did you mean 'resnet18'",
        "timm:resnet19": "timm has no network 'resnet19': did you mean",
        "torchvision:mobilenet_v2": "cannot fetch the weights of torchvision:mobilenet_v2 (<urlopen error [Errno -3]",
        "timm:mobilenetv2_100": "cannot fetch the weights of timm:mobilenetv2_100 (<urlopen error [Errno -3]",
    }


def test_bad_starts_are_one_clear_line_and_leave_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for init, message in hostile(tmp_path, monkeypatch).items():
        assert main(["pretrain", "digits", "--out", "run", "--init", init]) == 2, init
        told = capsys.readouterr().err.strip()
        assert message in told, init
        assert len(told.splitlines()) == 1, init
        assert not (tmp_path / "run").exists(), init
    assert not (tmp_path / "harmed").exists()


def test_what_does_not_fit_is_named_on_the_command_line(small, tmp_path, capsys):
    arguments = ["pretrain", "digits", "--out", str(tmp_path / "run"), "--init", str(small / "a.safetensors")]
    assert main([*arguments, "--base", "32"]) == 2
    told = capsys.readouterr().err
    assert "features.0.0.weight is (8, 3, 3, 3) but should be (16, 3, 3, 3)" in told
    assert "--backbone" in told
    assert not (tmp_path / "run").exists()
