from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

import us3l
from tests.shapes import write_coco
from us3l.data.sources import load
from us3l.system.errors import UserError
from us3l.training.configuration import configuration
from us3l.training.run_config import config_of

TINY = {"recipe": "digits", "base": 8, "epochs": 1, "max_steps": 2, "batch_size": 16, "hidden": 16, "predictor": 16}


class Small(nn.Module):
    """A network of the user's own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, 2, 1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(images)).relu().mean(dim=(2, 3))


def my_family(width: float) -> nn.Module:
    return Small(round(16 * width))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> us3l.Run:
    return us3l.pretrain("digits", tmp_path_factory.mktemp("runs") / "digits", images=64, dim=16, **TINY)


def test_from_images_to_a_run_to_its_worth_without_a_word(run, capsys):
    assert run.finished
    config = config_of(run)
    assert (config.data, config.recipe.epochs, config.recipe.network.base) == ("digits", 1, 8)
    record = us3l.evaluate(run, widths=(1, 0.5), floor=False)
    assert [row["width"] for row in record.rows] == [1.0, 0.5]
    assert run.evaluations["digits"].percent("linear") == record.percent("linear")
    again = us3l.evaluate(run.folder, widths=0.25, floor=False)  # a path will do, and widths are added
    assert again.percent("linear").keys() == {1.0, 0.5, 0.25}
    assert capsys.readouterr() == ("", "")


def test_a_network_in_memory_is_evaluated_and_nothing_is_written(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = us3l.evaluate(run.network, "digits", widths=(0.5,), floor=False, train_images=50, test_images=50)
    assert record.train_images == record.test_images == 50
    assert record.rows[0]["linear"] is not None
    assert not list(tmp_path.iterdir())


def test_images_may_be_pixels_files_or_a_data_set(tmp_path):
    pixels = load("digits", "train", size=16, limit=32).images
    run = us3l.pretrain(pixels, out=tmp_path / "pixels", dim=16, **TINY)
    assert config_of(run).data == "<Tensor of 32 images>"
    with pytest.raises(UserError, match="<Tensor of 32 images>"):
        us3l.evaluate(run)

    class Pairs(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return pixels[index], index % 2

    found = us3l.evaluate(run, Pairs(), test_data=Pairs(), widths=[1.0], floor=False)
    assert (found.train_images, found.test_images) == (32, 32)


def test_a_network_of_ones_own_goes_the_whole_way(tmp_path):
    run = us3l.pretrain("digits", tmp_path / "own", network=my_family, images=64, dim=16, **TINY)
    assert config_of(run).recipe.network.backbone == f"{__name__}:my_family"
    assert us3l.evaluate(run, widths=(1, 0.25), floor=False).rows
    again = us3l.Run(run.folder, family=my_family)
    assert torch.equal(again.network.weights()["conv.weight"], run.network.weights()["conv.weight"])
    with pytest.raises(UserError, match="a network of your own family"):
        _ = us3l.Run(run.folder).network
    (run.model / "model.json").unlink()
    with pytest.raises(UserError, match="give it again, network="):
        us3l.pretrain(out=run.folder, resume=True)
    assert us3l.pretrain(out=run.folder, resume=True, network=my_family).finished


def test_a_run_that_is_resumed_keeps_its_settings(run):
    assert us3l.pretrain(out=run.folder, resume=True).finished
    with pytest.raises(UserError, match="a resumed run keeps its settings"):
        us3l.pretrain(out=run.folder, resume=True, epochs=9)
    with pytest.raises(UserError, match="a resumed run keeps its settings"):
        us3l.pretrain("cifar10", out=run.folder, resume=True)
    assert us3l.pretrain("digits", out=run.folder, resume=True).finished


def test_a_detector_on_one_width(run, tmp_path, capsys):
    data = write_coco(tmp_path / "shapes", train2017=2, val2017=1)
    tiny = {"steps": 2, "batch": 2, "image_size": 24, "channels": 8, "regions": 16, "workers": 0, "device": "cpu"}
    record = us3l.detect(run, data, 0.5, **tiny)
    assert record == run.detections["shapes-0.5x"]
    assert [row["class"] for row in record.rows] == ["all", "block", "disc"]
    assert record.rows[0]["boxes_ap50"] == record.boxes.overall.ap50
    assert record.rows[2]["masks_ap"] == record.masks.classes["disc"].ap
    with pytest.raises(UserError, match=r"shapes-0\.5x\.pt already exists"):
        us3l.detect(run.folder, data, 0.5, **tiny)
    with pytest.raises(UserError, match="`out="):
        us3l.detect(run.network, data, 0.5)
    assert us3l.detect(run.network, data, 0.5, out=tmp_path / "found", **tiny).boxes == record.boxes
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        path.name for path in run.detection_folder.iterdir()
    }
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "digits"}, "say where the run should go"),
        ({"out": "x"}, "say which images to learn from"),
        ({"data": "digits", "out": "x", "epoch": 3}, "unknown setting 'epoch': did you mean 'epochs'"),
        ({"data": "digits", "out": "x", "epochs": "many"}, "epochs: expected int, got 'many'"),
        ({"data": "digits", "out": "x", "backbone": "resnet19"}, "unknown backbone 'resnet19': did you mean"),
        ({"data": "digits", "out": "x", "progress": "loud"}, "progress='loud' must be"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        us3l.pretrain(**arguments)
    assert not list(tmp_path.iterdir())


def test_settings_by_name_are_those_of_the_method() -> None:
    by_name = configuration("photos", method="us3l-byol")
    by_loss = configuration("photos", settings={"base_loss": "mse"})
    assert by_name.recipe.optimiser == by_loss.recipe.optimiser
    assert configuration("photos", settings={"base_loss": "mse", "lr": 3.0}).recipe.optimiser.lr == 3.0
    assert configuration("digits").recipe.views.size == 16


def test_profile_pick_and_export_of_a_run(run, tmp_path):
    found = us3l.profile(run, widths=(1, 0.5), repeats=1, device="here")
    assert {row["width"] for row in found.rows if row.get("backend")} == {1.0, 0.5}
    assert us3l.pick(run, latency_ms=1e6).fits
    assert us3l.pick(str(run.folder), params=1).fits is False
    written = us3l.export(run, width=0.5, format="safetensors", out=tmp_path / "bundle")
    assert [path.exists() for path in written.files] == [True]
    assert written.rows[0]["width"] == 0.5


def test_a_network_in_memory_is_profiled_picked_and_exported(run, tmp_path):
    net = run.network
    assert us3l.profile(net, widths=0.5, repeats=1).rows
    picked = us3l.pick(net, macs=1e12)
    assert picked.width == 1.0
    (row,) = picked.rows
    assert (row["width"], row["fits"], row["macs"] > 0) == (1.0, True, True)
    with pytest.raises(UserError, match="say where the files of a network should go"):
        us3l.export(net, 0.5)
    (file,) = us3l.export(net, 0.5, out=tmp_path / "files").files
    assert file.suffix == ".pt2"
    with pytest.raises(UserError, match="latencies are not measured yet"):
        us3l.pick(net, latency_ms=5)


def test_report_and_compare(run, tmp_path):
    us3l.evaluate(run, widths=(1,), floor=False)
    page = us3l.report(run, images=False)
    assert page == run.report
    assert page.stat().st_size > 10_000
    copy = tmp_path / "other"
    shutil.copytree(run.folder, copy)
    rows = us3l.compare(run, copy).rows
    assert rows[0]["width"] == 1.0
