import pytest
import torch

import us3l
from us3l.data.sources import ImageSet, load
from us3l.data.views import evaluation_view
from us3l.errors import UserError
from us3l.evaluation.evaluate import evaluate, images_to_embed, untrained
from us3l.evaluation.features import embed
from us3l.evaluation.knn import knn_accuracy


@pytest.fixture
def net():
    torch.manual_seed(5)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"training": {"seed": 5}}
    return net


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train", limit=200), load("digits", "test", limit=50)


def test_results_of_each_width(net, digits):
    done = []
    results = evaluate(net, *digits, widths=[1.0, 0.5], size=8, progress=done.append)
    assert [result.width for result in results] == [1.0, 0.5]
    assert sum(done) == images_to_embed(*digits, [1.0, 0.5]) == 2 * 2 * 250
    assert results[0].params == us3l.cost(net.carve(1.0), (3, 8, 8)).params
    assert results[1].macs == us3l.cost(net.carve(0.5), (3, 8, 8)).macs
    # An untrained network is its own floor.
    for result in results:
        assert result.knn == result.knn_untrained > 30
        assert result.linear == result.linear_untrained > 30
    train, test = digits
    features = [net.at(0.5)(evaluation_view(part.images, 8)) for part in (train, test)]
    assert results[1].knn == knn_accuracy(features[0], train.labels, features[1], test.labels)
    assert evaluate(net, *digits, widths=[1.0, 0.5], size=8) == results


def test_without_a_floor(net, digits):
    (result,) = evaluate(net, *digits, widths=[0.25], size=8, floor=False)
    assert result.knn_untrained is None
    assert result.linear is not None


def test_stored_statistics_are_used(net, digits):
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), widths=[0.5])
    before = net.statistics[net.signature(0.5)][1]
    evaluate(net, *digits, widths=[0.5], size=8, floor=False)
    assert net.statistics[net.signature(0.5)][1] is before


def test_the_untrained_network_is_the_one_the_run_started_from(net):
    first = untrained(net)
    with torch.no_grad():
        net.full.conv1.weight.zero_()
    state = torch.get_rng_state()
    assert torch.equal(untrained(net).full.conv1.weight, first.full.conv1.weight)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(us3l.create("resnet18", stem="cifar", base=8).full.conv1.weight, first.full.conv1.weight)


def test_embedding_does_not_depend_on_batches(net, digits):
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), widths=[0.5])
    whole = embed(net.at(0.5), digits[0].images, 8, batch=200)
    torch.testing.assert_close(embed(net.at(0.5), digits[0].images, 8, batch=33), whole, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_evaluated(net, digits):
    train, test = digits
    unlabelled = ImageSet("mine", train.images)
    with pytest.raises(UserError, match="mine has no labels"):
        evaluate(net, unlabelled, test, size=8)
    alike = ImageSet("mine", train.images, torch.zeros(200, dtype=torch.int64), ["a"])
    with pytest.raises(UserError, match="one class only"):
        evaluate(net, alike, test, size=8)
    fewer = train.subset(torch.nonzero(train.labels < 8)[:, 0])
    with pytest.raises(UserError, match=r"2 classes of the test images have no training image \(8, 9\)"):
        evaluate(net, fewer, test, size=8)
    with pytest.raises(UserError, match=r"0\.2 is outside"):
        evaluate(net, train, test, widths=[0.2], size=8)
