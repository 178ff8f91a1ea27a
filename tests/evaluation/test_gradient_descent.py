import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles, ImageSet, find, load
from us3l.evaluation.frozen_features import evaluate_fast
from us3l.evaluation.gradient_descent import (
    evaluate_finetuned,
    evaluate_paper,
    finetune,
    images_to_train,
    make_optimiser,
    train_probes,
)
from us3l.evaluation.measure import probe_kind
from us3l.evaluation.prepare import prepare
from us3l.evaluation.protocols import EvaluationSettings, Training, finetuning, paper_probe, paper_side
from us3l.system.errors import UserError

QUICK = Training("sgd", 1.0, 2, 50, 0.0, "steps", (0.8, 1.0))
EIGHT = Preprocessing.usual(8)

Pair = tuple[ImageSet, ImageSet]


@pytest.fixture
def net():
    torch.manual_seed(5)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8}}
    return net


@pytest.fixture(scope="module")
def digits() -> Pair:
    return load("digits", "train", limit=150), load("digits", "test", limit=60)


def test_the_papers_settings():
    small, large = paper_probe("transfer", 32), paper_probe("imagenet", 224)
    assert (small.optimiser, small.lr, small.epochs, small.weight_decay, small.crop_scale) == (
        "sgd",
        30.0,
        100,
        0.0,
        (0.8, 1.0),
    )
    rates = [small.learning_rate(epoch) for epoch in range(100)]
    assert rates == pytest.approx([30.0] * 60 + [3.0] * 20 + [0.3] * 20)
    assert (large.optimiser, large.lr, large.epochs, large.schedule) == ("lars", 0.8, 60, "cosine")
    assert (large.learning_rate(0), large.learning_rate(30)) == pytest.approx((0.8, 0.4))
    transfer, vit = paper_probe("transfer", 224), paper_probe("vit", 224)
    assert replace(transfer, crop_scale=small.crop_scale) == small
    assert (vit.optimiser, vit.epochs, vit.schedule, vit.weight_decay) == ("sgd", 90, "cosine", 0.0)
    assert (vit.lr, paper_probe("vit", 224, 256).lr) == pytest.approx((0.1 * vit.batch_size / 256, 0.1))
    assert (paper_side(32), paper_side(224)) == (36, 256)
    views = small.views(32)
    assert (views.flip, views.jitter, views.grey, views.blur) == (0.5, 0, 0, 0)


def test_probes_are_trained_together_as_alone_and_the_network_stays(net, digits: Pair):
    train, _ = digits
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), [1.0, 0.5])
    before = {name: tensor.clone() for name, tensor in net.at(0.5).state_dict().items()}
    networks = {width: net.at(width) for width in (1.0, 0.5)}
    together = train_probes(networks, train, 10, EIGHT, QUICK)
    alone = train_probes({0.5: networks[0.5]}, train, 10, EIGHT, QUICK)
    assert torch.equal(together[0.5].weight, alone[0.5].weight)
    assert not torch.equal(train_probes(networks, train, 10, EIGHT, QUICK, seed=1)[0.5].weight, alone[0.5].weight)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.at(0.5).state_dict().items())


@pytest.fixture
def colours():
    """Images that their mean colour tells apart, and networks of which each width sees it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    bases = torch.tensor([[200, 50, 50], [50, 200, 50], [50, 50, 200], [130, 130, 130]])[labels].view(-1, 3, 1, 1)
    noise = torch.randint(-40, 40, (120, 3, 8, 8), generator=generator)
    images = ImageSet("colours", (bases + noise).to(torch.uint8), labels, list("rgbw"))
    torch.manual_seed(0)
    net = us3l.Slimmable(
        lambda width: nn.Sequential(nn.Conv2d(3, round(8 * width), 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    net.metadata = {"preprocessing": {"size": 8}}
    return net, images.subset(torch.arange(80)), images.subset(torch.arange(80, 120))


def test_the_papers_probe_learns(colours):
    done = []
    net, train, test = colours
    settings = Training("sgd", 1.0, 30, 20, 0.0, "steps", (0.8, 1.0))
    prepared = prepare(net, train, test, [1.0, 0.5])
    found = evaluate_paper(prepared, settings, seeds=2, progress=done.append)
    assert sum(done) == images_to_train(prepared, settings, 2, whole=False)
    for row in found.rows:
        assert row.scores.keys() == {"linear"}
        assert (row.scores["linear"].top1, row.scores["linear"].deviation) == (100, 0)
        assert found.probes[row.width].weight.shape == (4, 8 * float(row.width))
    slow = Training("sgd", 1e-9, 1, 20, 0.0, "steps", (0.8, 1.0))
    once, again = (evaluate_paper(prepared, slow, seeds=2).rows for _ in range(2))
    assert once == again
    assert once[0].percent("linear") < 80


@pytest.mark.parametrize("evaluate", [evaluate_paper, evaluate_finetuned])
def test_crops_are_normalised_as_the_network_has_learned(evaluate, colours):
    _, train, test = colours
    largest = []

    class Watched(nn.Conv2d):
        def forward(self, images):
            if images.device.type != "meta":  # where costs are counted
                largest.append(float(images.abs().max()))
            return super().forward(images)

    net = us3l.Slimmable(lambda width: nn.Sequential(Watched(3, round(8 * width), 8), nn.Flatten()))
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.01] * 3}}
    evaluate(prepare(net, train, test, [1.0]), Training("sgd", 1e-6, 1, 20, 0.0, "steps", (0.8, 1.0)))
    shown = [value for value in largest if value]  # a head is made for what becomes of zeros
    assert len(shown) > 4
    assert min(shown) > 10  # by ImageNet's statistics it would be below 3


@pytest.mark.parametrize(
    ("data", "backbone", "kind"),
    [
        ("imagenet", "resnet18", "imagenet"),
        ("flowers102", "resnet18", "transfer"),
        ("my-photos", "mobilenet_v2", "transfer"),
        ("cifar10", "vit_tiny", "vit"),
        ("imagenet", "vit_tiny", "vit"),
    ],
)
def test_the_probe_follows_the_data_and_the_network_not_the_size(data, backbone, kind):
    net = us3l.create(backbone, base=8)
    images = ImageSet(data, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    assert probe_kind(net, images, EvaluationSettings()) == kind


def test_lars_adapts_as_apexs_larc(monkeypatch):
    settings = paper_probe("imagenet", 224)
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(4, 5, 3, generator=generator)
    weight, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    lars, sgd = make_optimiser([weight], settings), make_optimiser([plain], replace(settings, optimiser="sgd"))
    expected, velocity = start.clone(), torch.zeros_like(start)
    for gradient in gradients:
        for optimiser, parameter in ((lars, weight), (sgd, plain)):
            parameter.grad = gradient.clone()
            optimiser.step()
        # LARC of apex with trust 0.001, not clipped, as in SimSiam's linear evaluation.
        velocity = 0.9 * velocity + 0.001 * expected.norm() / gradient.norm() * gradient
        expected = expected - settings.lr * velocity
    torch.testing.assert_close(weight.detach(), expected)
    assert (plain - weight).abs().max() > 0.1
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    with pytest.raises(UserError, match=r"pip install 'us3l\[timm\]'"):
        make_optimiser([weight], settings)


def test_fine_tuning_changes_the_copy_alone(net, digits: Pair):
    settings = Training("sgd", 0.1, 25, 25, 1e-4, "cosine", (0.8, 1.0))
    weights = {name: tensor.clone() for name, tensor in net.full.named_parameters()}
    done = []
    prepared = prepare(net, *digits, [0.5])
    found = evaluate_finetuned(prepared, settings, progress=done.append)
    assert sum(done) == images_to_train(prepared, settings, 1, whole=True)
    assert found.rows[0].percent("finetuned") > 25  # chance is 10
    assert (found.rows[0].scores.keys(), found.probes) == ({"finetuned"}, {})
    assert all(torch.equal(weights[name], tensor) for name, tensor in net.full.named_parameters())
    quick = replace(settings, epochs=1)
    assert evaluate_finetuned(prepared, quick).rows == evaluate_finetuned(prepared, quick).rows


def test_every_weight_is_trained(net, digits: Pair):
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), [0.5])
    carved = net.carve(0.5)
    before = {name: tensor.clone() for name, tensor in carved.named_parameters()}
    whole = finetune(carved, digits[0], 10, EIGHT, Training("sgd", 0.1, 1, 64, 0.0, "cosine", (1.0, 1.0)))
    assert not whole.training
    assert all(not torch.equal(before[name], tensor) for name, tensor in carved.named_parameters())


def test_from_files_too(net, tmp_path):
    for number in range(20):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (10 + number, 12), (200 * (number % 2), 10, number)).save(path)
    train, test = find(tmp_path, "train"), find(tmp_path, "test")
    assert isinstance(train, ImageFiles)
    settings = Training("sgd", 1.0, 2, 8, 0.0, "steps", (0.8, 1.0))
    assert "linear" in evaluate_paper(prepare(net, train, test, [0.25]), settings).rows[0].scores


@pytest.mark.parametrize("change", [{"lr": 0.0}, {"epochs": 0}, {"batch_size": 0}, {"weight_decay": -1.0}])
def test_settings_that_make_no_sense(change):
    with pytest.raises(UserError, match="training needs lr > 0"):
        replace(finetuning(32), **change)


def test_divergence_is_said(net, digits: Pair):
    wild = Training("sgd", 1e25, 3, 100, 0.0, "steps", (0.8, 1.0))
    with pytest.raises(UserError, match=r"loss became (nan|inf).*lower `lr`"):
        evaluate_finetuned(prepare(net, *digits, [0.25]), wild)


def test_a_width_that_is_asked_for_twice_is_evaluated_once(colours):
    net, train, test = colours
    prepared = prepare(net, train, test, [1.0, 0.5, 1.0])
    for evaluate in (evaluate_fast, evaluate_paper, evaluate_finetuned):
        settings = {} if evaluate is evaluate_fast else {"training": replace(QUICK, epochs=1)}
        assert [row.width for row in evaluate(prepared, **settings).rows] == [1.0, 0.5]


@pytest.mark.parametrize("evaluate", [evaluate_paper, evaluate_finetuned])
def test_damaged_images_that_leave_one_in_a_batch(net, tmp_path, evaluate):
    for number in range(10):
        path = tmp_path / ("train" if number < 6 else "test") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (200 * (number % 2), 10, number)).save(path)
    for number in range(2):  # of three batches of two, one has a good image left
        (tmp_path / "train" / "ab"[number] / f"{number}.png").write_bytes(b"no image")
    train, test = find(tmp_path, "train"), find(tmp_path, "test")
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), [0.25])
    settings = Training("sgd", 0.1, 4, 3, 0.0, "steps", (0.8, 1.0))
    assert evaluate(prepare(net, train, test, [0.25]), settings).rows


def test_batch_norm_cannot_be_trained_on_single_images(net, digits: Pair):
    with pytest.raises(UserError, match="batch_size must be at least 2"):
        evaluate_finetuned(prepare(net, *digits, [0.25]), replace(QUICK, batch_size=1))
