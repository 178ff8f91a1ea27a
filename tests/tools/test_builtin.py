"""The program that makes the built-in network: targets of crops, exact resume, the file that it writes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import us3l
from tools.builtin.elastic import Elastic, copy_into, sorted_source
from tools.builtin.fused_norm import FusedNorm, library
from tools.builtin.images import centre_box, centres, cut, preprocessed, read_images
from tools.builtin.measure import HeldOut
from tools.builtin.recipe import Recipe
from tools.builtin.release import write
from tools.builtin.teacher import Targets, Teacher
from tools.builtin.train import WEIGHTS, Command, batch_rows, run
from us3l.data.preprocessing import Preprocessing

RECIPE = Recipe(batch=4, warmup=2, sizes=(32, 64, 96), shares=(0.5, 0.3, 0.2))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the program reads, with a few images of noise, and a source with random weights."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    places = ["photos/train/a", "photos/train/b", "pets/train/c", "corpus/imagenet_samples", "corpus/tiny_imagenet"]
    for place in places:
        (folder / place).mkdir(parents=True)
        for number in range(8):
            pixels = draw.integers(0, 256, (64, 80 if "pets" in place else 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{number}.png")
    torch.manual_seed(0)
    (folder / WEIGHTS).parent.mkdir()
    source = torchvision.models.mobilenet_v2()
    for norm in (one for one in source.modules() if isinstance(one, nn.BatchNorm2d)):
        norm.momentum = None  # so that one batch gives statistics with which features are not all zero
    with torch.no_grad():
        source(torch.randn(16, 3, 96, 96))
    save_file(source.state_dict(), folder / WEIGHTS)
    return folder


def test_images_held_out_are_never_learned_from(data: Path) -> None:
    learned, held_out = read_images(data), read_images(data, held_out=True)
    assert not {*learned.names} & {*held_out.names}
    assert len(learned) + len(held_out) == 40
    assert {name.split("/")[0] for name in held_out.names} == {"photos", "pets", "corpus"}
    steps = [batch_rows(learned, RECIPE, step) for step in range(100)]
    assert {row for rows in steps for row in rows} == {*range(len(learned))}


def test_the_target_of_a_whole_image_is_its_feature(data: Path, tmp_path: Path) -> None:
    images, teacher = read_images(data), Teacher(data / WEIGHTS)
    targets = Targets(tmp_path, images, teacher, size=96, blurred_size=64)
    targets.prepare()
    rows = [row for row, name in enumerate(images.names) if name.startswith("photos")][:3]
    whole = [centre_box(64, 64, 1.0)] * 3
    expected = teacher.features(preprocessed(cut(images, rows, whole, 96)))
    assert expected.mean() > 0.1
    assert torch.allclose(targets.of(rows, whole), expected, rtol=2e-3, atol=2e-3)
    left = [(0, 0, 64, 64 // 3)] * 3  # of three columns of the map, the first
    maps = teacher.maps(preprocessed(cut(images, rows, whole, 96)))
    assert maps.shape[-2:] == (3, 3)
    assert F.cosine_similarity(targets.of(rows, left), maps[..., 0].mean(dim=2)).min() > 0.999
    with pytest.raises(ValueError, match="other images or settings"):
        Targets(tmp_path, images, teacher, size=128)


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("channels", [3, 48, 100])
@pytest.mark.parametrize("clamped", [True, False])
def test_the_fused_norm_is_batch_norm_and_relu6(channels: int, clamped: bool) -> None:
    torch.manual_seed(0)
    x = (2 * torch.randn(8, channels, 9, 7) + 1).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = torch.randn(channels, requires_grad=True), torch.randn(channels, requires_grad=True)
    expected = F.batch_norm(x, None, None, weight, bias, True, 0.0, 1e-5)
    expected = F.relu6(expected) if clamped else expected
    ours = FusedNorm.apply(x, weight, bias, 1e-5, clamped)
    assert torch.allclose(ours, expected, atol=1e-5)
    upstream = torch.randn_like(ours)
    for got, wanted in zip(
        torch.autograd.grad(ours, (x, weight, bias), upstream),
        torch.autograd.grad(expected, (x, weight, bias), upstream),
        strict=True,
    ):
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_network_that_learns_computes_what_the_library_does(data: Path) -> None:
    net = sorted_source(data / WEIGHTS).train()
    images = torch.randn(8, 3, 64, 64)
    for width in (0.25, 0.4, 1.0):
        assert F.cosine_similarity(Elastic(net)(width, images), net(images, width)).min() > 0.9999


def test_a_run_that_was_stopped_goes_on_exactly(data: Path, tmp_path: Path) -> None:
    shared = {"data": data, "targets": tmp_path / "targets", "recipe": RECIPE}
    whole = run(Command(out=tmp_path / "whole", steps=4, measure_every=2, **shared))
    run(Command(out=tmp_path / "halves", steps=2, measure_every=0, **shared))
    halves = run(Command(out=tmp_path / "halves", steps=4, measure_every=0, **shared))
    for name, tensor in whole.net.full.state_dict().items():
        assert torch.equal(tensor, halves.net.full.state_dict()[name])
        assert torch.equal(whole.average[name], halves.average[name])
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert set(lines[0]["figures"]["0.25x@128"]) == {"photos", "pets", "cosine", "agreement"}

    cooled = run(Command(out=tmp_path / "cooled", start=tmp_path / "whole", cool=2, measure_every=0, **shared))
    assert (cooled.step, cooled.cooling) == (6, (4, 6))
    assert cooled.recipe.rate_at(5, cooled.cooling) == cooled.recipe.rate / 2


def test_the_model_is_the_network_that_was_measured(data: Path, tmp_path: Path) -> None:
    net = sorted_source(data / WEIGHTS)
    images = read_images(data)
    held_out = HeldOut(images, images, Teacher(data / WEIGHTS))
    write(tmp_path / "model", net, held_out, [0.25, 0.5], 96, {"steps": 7})
    shown = preprocessed(centres(images, [0, 1], 96))
    again = us3l.load(tmp_path / "model")
    assert torch.allclose(again.at(0.5)(shown), held_out.calibrated(net, 0.5, 96)(shown), atol=1e-5)
    assert (again.digest, again.calibrated(0.25), again.calibrated(1)) == (net.digest, True, False)
    assert Preprocessing.of(again) == Preprocessing.usual(96)


def test_weights_are_copied(data: Path) -> None:
    net = sorted_source(data / WEIGHTS)
    copy_into(net, {name: nn.init.ones_(torch.empty_like(one)) for name, one in net.full.named_parameters()})
    assert all((one == 1).all() for one in net.full.parameters())
