"""Figures of quality without labels, on data whose answer is known."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

import us3l
from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.data.view_settings import Views
from us3l.evaluation.measure import evaluate_network
from us3l.evaluation.prepare import FEWEST, prepare
from us3l.evaluation.protocols import EvaluationSettings
from us3l.evaluation.unlabelled import (
    VIEWS,
    effective_rank,
    embed_views,
    images_to_look_at,
    lidar,
    measure_quality,
    predicted_share,
    quality,
    rankme,
    shared_neighbours,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(size, seed=5):
    return torch.linalg.qr(normal(size, size, seed=seed))[0]


def orthonormal(images, channels):
    return torch.linalg.qr(normal(images, channels))[0]


def test_rankme_counts_equal_directions_and_weighs_unequal_ones():
    directions = orthonormal(40, 8)
    assert rankme(directions) == pytest.approx(8)
    assert rankme(torch.ones(30, 5)) == pytest.approx(1, abs=1e-4)
    assert rankme(torch.zeros(30, 5)) == 0
    scale = torch.tensor([4.0, 2, 1, 1, 0, 0, 0, 0])  # halves, quarters and eighths: an entropy of 1.75 bits
    assert rankme(directions * scale) == pytest.approx(2**1.75)
    features = normal(50, 8) @ normal(8, 8, seed=1) + 2
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(features.numpy().T @ features.numpy()), 0))
    shares = singular / singular.sum()
    assert rankme(features) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert rankme(7 * features @ rotation(8)) == pytest.approx(rankme(features))
    assert rankme(features.float()) == pytest.approx(rankme(features), rel=1e-4)


def test_what_has_no_direction_has_no_rank():
    assert effective_rank(torch.zeros(3)) == 0
    assert effective_rank(torch.tensor([1.0, -1.0])) == 1


def views_of(between, within, images=2000, views=4):
    """Features whose images and views differ by these deviations in each channel."""
    channels = len(between)
    return normal(images, 1, channels) * between + normal(images, views, channels, seed=1) * within + 3


def test_lidar_counts_the_directions_that_tell_images_apart():
    within = torch.full((12,), 0.1, dtype=torch.float64)
    four = torch.tensor([1.0] * 4 + [0.0] * 8)
    assert lidar(views_of(four, within)) == pytest.approx(4, rel=0.05)
    # A channel counts by what tells images apart in units of what views do to them: here 1 : 4 : 4.
    uneven = lidar(views_of(torch.tensor([1.0, 2, 4]), torch.tensor([1.0, 1, 2]), views=10))
    expected = effective_rank(torch.tensor([1.0, 4.0, 4.0]))
    assert uneven == pytest.approx(expected, rel=0.03)
    # Channels that only follow the views are not quality, though RankMe counts them.
    noisy = views_of(four, torch.tensor([0.1] * 4 + [3.0] * 8))
    assert lidar(noisy) == pytest.approx(4, rel=0.1)
    assert rankme(noisy[:, 0]) > 6
    assert lidar(torch.zeros(10, 3, 4)) == 0


def test_lidar_is_the_same_for_turned_and_scaled_features():
    features = views_of(torch.linspace(0.1, 1, 6), torch.linspace(0.3, 0.1, 6), images=100)
    assert lidar(5 * features @ rotation(6)) == pytest.approx(lidar(features))


def test_lidar_by_loops():
    features = views_of(torch.linspace(0.1, 1, 5), torch.linspace(0.3, 0.1, 5), images=30, views=3).numpy()
    images, views, channels = features.shape
    mean = features.mean((0, 1))
    between, within = np.zeros((channels, channels)), np.zeros((channels, channels))
    for image in features:
        own = image.mean(0)
        between += np.outer(own - mean, own - mean) / (images - 1)
        for view in image:
            within += np.outer(view - own, view - own) / (images * (views - 1))
    ridged = within + 1e-4 * (features**2).mean() * np.eye(channels)
    # Whitening on one side has the same eigenvalues as on both.
    found = np.linalg.eigvals(np.linalg.inv(ridged) @ (between - within / views)).real
    shares = found[found > 0] / found[found > 0].sum()
    assert lidar(torch.from_numpy(features)) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-6)


def test_shared_neighbours():
    features = normal(200, 6)
    assert shared_neighbours(features, features) == 100
    assert shared_neighbours(2 * features @ rotation(6), features) == 100
    assert shared_neighbours(normal(200, 6, seed=9), features) < 12  # chance is 5 %
    assert 20 < shared_neighbours(features[:, :4], features) < 80


def test_predicted_share_is_ridge_regression_on_other_images():
    full = normal(90, 12) @ normal(12, 12, seed=1)
    features = full[:, :5] * torch.tensor([1e-3, 1.0, 10.0, 1e3, 1.0]) + 0.1 * normal(90, 5, seed=2)

    def predicted(x, y):
        error = 0.0
        for fold in range(4):
            held = np.arange(len(x)) % 4 == fold
            map_ = Ridge(alpha=(~held).sum(), fit_intercept=False).fit(x[~held], y[~held])
            error += np.square(y[held] - map_.predict(x[held])).sum()
        return 1 - error / np.square(y).sum()

    x, y = (StandardScaler().fit_transform(values.numpy()) for values in (features, full))
    assert predicted_share(features, full) == pytest.approx(100 * predicted(x, y) / predicted(y, y), rel=1e-6)


def test_predicted_share_of_what_tells_nothing_is_nothing():
    full = normal(80, 6)
    assert predicted_share(full, full) == 100
    assert predicted_share(torch.cat([full, torch.full((80, 1), 7.0)], dim=1), full) == pytest.approx(100)
    assert predicted_share(normal(80, 6, seed=9), full) == 0
    assert predicted_share(torch.ones(80, 6), full) == pytest.approx(0, abs=1e-9)
    assert predicted_share(full, torch.ones(80, 6)) == 0


def test_features_that_are_not_finite_have_no_quality():
    features, viewed = normal(80, 4), normal(20, 3, 4)
    assert quality(features, viewed, features).keys() == {"rankme", "lidar", "agreement"}
    assert quality(features[:20], viewed, features[:20]).keys() == {"rankme", "lidar"}
    assert quality(features, viewed / 0, features) == {}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8}}
    us3l.calibrate(net, torch.randn(32, 3, 8, 8), widths=(1.0, 0.5, 0.25))
    return net


def test_every_width_of_a_network(net):
    pixels = torch.randint(256, (FEWEST + 10, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images, counted = ImageSet("noise", pixels), []
    few = ImageSet("few", pixels[: FEWEST - 1])

    def prepared(train, test, widths):
        return prepare(net, train, test, widths, labelled=False, compared=True)

    job = prepared(few, images, (0.5, 0.25))
    found = measure_quality(job, counted.append)
    for width, channels in ((0.5, 32), (0.25, 16)):
        assert 1 < found[width]["rankme"] < channels
        assert 1 < found[width]["lidar"] < channels
        assert 0 < found[width]["agreement"] < 100
    assert found[1.0]["agreement"] == 100
    assert sum(counted) == images_to_look_at(job) == 60 * (1 + VIEWS) * 3
    assert measure_quality(prepared(images, few, (0.5, 0.25))) == found  # whichever has enough
    assert (measure_quality(prepared(few, few, (0.5,))), images_to_look_at(prepared(few, few, (0.5,)))) == ({}, 0)
    record, _ = evaluate_network(net, few, images, EvaluationSettings(widths=(0.5,)))
    assert (record.widths[0].quality, record.metric) == (found[0.5], None)


def test_networks_alone_have_none_to_agree_with():
    alone = us3l.create("resnet18", stem="cifar", base=8, individual=0.5)
    alone.metadata = {"preprocessing": {"size": 8}}
    images = ImageSet("noise", torch.randint(256, (FEWEST, 3, 8, 8), dtype=torch.uint8))
    (row,) = evaluate_network(alone, images, images)[0].widths
    assert row.quality.keys() == {"rankme", "lidar"}


def test_views_belong_to_their_images_and_draw_nothing_from_the_global_generator():
    pixels = torch.arange(130, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    state = torch.get_rng_state()
    plain = Views(size=8, jitter=0, grey=0)  # crops and flips leave an even image as it is
    (found,) = embed_views([lambda batch: batch.mean((2, 3))], pixels, plain, Preprocessing.usual(8))
    assert found.shape == (130, VIEWS, 3)
    torch.testing.assert_close(found, Preprocessing.usual(8).apply(pixels).mean((2, 3))[:, None].expand_as(found))
    assert torch.equal(state, torch.get_rng_state())
