import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, find, load
from us3l.evaluation.features import embed, embed_all
from us3l.evaluation.frozen_features import evaluate_fast, images_to_embed, share_of_each_class, untrained
from us3l.evaluation.knn import knn_accuracy
from us3l.evaluation.prepare import prepare
from us3l.evaluation.protocols import EvaluationSettings
from us3l.evaluation.scoring import percent_correct
from us3l.system.errors import UserError

Pair = tuple[ImageSet, ImageSet]


@pytest.fixture
def net():
    torch.manual_seed(5)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"training": {"seed": 5}, "preprocessing": {"size": 8}}
    return net


@pytest.fixture(scope="module")
def digits() -> Pair:
    return load("digits", "train", limit=200), load("digits", "test", limit=50)


def test_results_of_each_width(net, digits: Pair):
    done = []
    prepared = prepare(net, *digits, widths=[1.0, 0.5])
    found = evaluate_fast(prepared, untrained(net), progress=done.append)
    full, half = found.rows
    assert [row.width for row in found.rows] == [1.0, 0.5]
    assert sum(done) == images_to_embed(prepared) == 2 * 2 * 250
    assert full.cost.params == us3l.cost(net.carve(1.0), (3, 8, 8)).params
    assert half.cost.macs == us3l.cost(net.carve(0.5), (3, 8, 8)).macs
    # An untrained network is its own floor.
    for row in found.rows:
        assert row.untrained == {metric: score.top1 for metric, score in row.scores.items()}
        assert min(row.untrained.values()) > 30
    train, test = digits
    features = [net.at(0.5)(Preprocessing.usual(8).apply(part.images)) for part in (train, test)]
    assert half.percent("knn") == knn_accuracy(features[0], train.labels, features[1], test.labels)
    assert evaluate_fast(prepared, untrained(net)).rows == found.rows
    # What is handed back classifies as was reported.
    judged = half.scores["linear"]
    assert percent_correct(found.probes[0.5].scores(features[1]), test.labels) == judged.top1
    assert judged.low < judged.top1 < judged.high
    assert len(judged.per_class) == 10


def test_without_a_floor(net, digits: Pair):
    (row,) = evaluate_fast(prepare(net, *digits, [0.25])).rows
    assert (row.untrained, row.scores.keys()) == ({}, {"knn", "linear"})


def test_stored_statistics_are_used(net, digits: Pair):
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), widths=[0.5])
    before = net.statistics(0.5)
    evaluate_fast(prepare(net, *digits, [0.5]))
    assert net.statistics(0.5) is before


def test_the_untrained_network_is_the_one_the_run_started_from(net):
    first = untrained(net)
    with torch.no_grad():
        net.full.conv1.weight.zero_()
    state = torch.get_rng_state()
    assert torch.equal(untrained(net).full.conv1.weight, first.full.conv1.weight)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(us3l.create("resnet18", stem="cifar", base=8).full.conv1.weight, first.full.conv1.weight)


def test_embedding_does_not_depend_on_batches(net, digits: Pair):
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), widths=[0.5])
    whole = embed(net.at(0.5), digits[0].images, 8, batch=200)
    torch.testing.assert_close(embed(net.at(0.5), digits[0].images, 8, batch=33), whole, rtol=1e-4, atol=1e-5)


def test_files_give_the_features_of_images_in_memory(net, tmp_path, monkeypatch):
    net.metadata = {"preprocessing": {"size": 64}}
    random = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "photos" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = ("RGB", "L", "RGBA")[number % 3]
        pixels = random.integers(0, 256, (64 + number, 80, 3), np.uint8) // (1 + number % 3)
        Image.fromarray(pixels).convert(mode).save(path)
    (tmp_path / "photos" / "a" / "cut.png").write_bytes(b"no image")
    parts = [[load(tmp_path / "photos", split, Preprocessing.usual(64).resize) for split in ("train", "test")]]
    parts += [[find(tmp_path / "photos", split) for split in ("train", "test")]]
    us3l.calibrate(net, torch.randn(16, 3, 64, 64), [1.0, 0.25])
    memory, files = (embed_all([net.at(0.25), net.at(1.0)], part[0], Preprocessing.usual(64)) for part in parts)
    assert all(map(torch.equal, memory.values, files.values))
    assert torch.equal(memory.labels, files.labels)
    assert len(files.damaged) == len(parts[0][0].skipped) <= 1
    found = [evaluate_fast(prepare(net, train, test, [1.0, 0.25])) for train, test in parts]
    assert found[0].rows == found[1].rows
    assert len(found[1].damaged) == 1
    monkeypatch.setattr("us3l.evaluation.frozen_features.FEATURE_BYTES", 1)  # one width at a time
    assert evaluate_fast(prepare(net, parts[1][0], parts[1][1], [1.0, 0.25])).rows == found[1].rows


def test_few_labels(net, digits: Pair):
    train, test = digits
    found = evaluate_fast(prepare(net, train, test, [0.5]), label_shares=(0.1, 1.0, 0.001), seeds=3)
    tenth, whole, least = found.few_labels
    assert (tenth.images, whole.images, least.images) == (20, 200, 10)  # at least one of each class
    assert tenth.linear.seeds == 3
    assert tenth.linear.deviation > 0
    assert whole.linear.deviation == 0
    assert whole.linear.top1 == found.rows[0].percent("linear") > tenth.linear.top1
    chosen = share_of_each_class(train.labels, 0.1, 0)
    assert train.labels[chosen].bincount().tolist() == [2] * 10
    assert torch.equal(chosen, share_of_each_class(train.labels, 0.1, 0))
    assert not torch.equal(chosen, share_of_each_class(train.labels, 0.1, 1))
    with pytest.raises(UserError, match="a share of the labels"):
        EvaluationSettings(label_share=(1.5,))


def test_what_cannot_be_evaluated(net, digits: Pair):
    train, test = digits
    unlabelled = ImageSet("mine", train.images)
    with pytest.raises(UserError, match="mine has no labels"):
        prepare(net, unlabelled, test)
    alike = ImageSet("mine", train.images, torch.zeros(200, dtype=torch.int64), ["a"])
    with pytest.raises(UserError, match="one class only"):
        prepare(net, alike, test)
    fewer = train.subset(torch.nonzero(train.labels < 8)[:, 0])
    with pytest.raises(UserError, match=r"2 classes of the test images have no training image \(8, 9\)"):
        prepare(net, fewer, test)
    with pytest.raises(UserError, match=r"0\.2 is outside"):
        prepare(net, train, test, [0.2])
