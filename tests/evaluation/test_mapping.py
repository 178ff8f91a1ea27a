import pytest
import torch
from torch.nn import functional as F

import us3l
from us3l.data.images import ImageSet
from us3l.evaluation.mapping import REST, common_space, embedding, fit_map, fit_space, half_whitened, images_to_fit


def test_the_map_leads_to_where_the_full_network_is():
    draw = torch.Generator().manual_seed(0)
    full = torch.randn(500, 8, generator=draw) * 3 + 1
    narrow = full @ torch.randn(8, 12, generator=draw) + 5  # which has all that the full features have
    target = half_whitened(full).scores(full)
    found = fit_map(narrow, target)
    assert found.weight.shape == (8, 12)
    assert (target - found.scores(narrow)).norm() < 0.1 * target.norm()


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
def test_half_whitening_makes_standard_deviations_their_square_roots_whatever_the_scale(size):
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw, dtype=torch.float64)).Q
    plain = torch.randn(2000, 4, generator=draw, dtype=torch.float64)
    plain = torch.linalg.qr(plain - plain.mean(0)).Q * torch.tensor([8.0, 4.0, 2.0, 2.0])
    full = (size * plain @ turn + 7).float()
    found = half_whitened(full).scores(full)
    torch.testing.assert_close(found.mean(0), torch.zeros(4), rtol=0, atol=1e-3 * found.abs().max().item())
    deviations = (found.double() @ turn.T).std(0)
    torch.testing.assert_close(
        deviations / deviations[0], torch.tensor([8.0, 4, 2, 2]).double().sqrt() / 8**0.5, atol=0.01, rtol=0
    )


def test_what_is_always_the_same_does_no_harm():
    full = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    full[:, 2] = 3.0
    space = half_whitened(full)
    assert space.weight.isfinite().all()
    assert space.weight.abs().max() < 10
    assert fit_map(torch.zeros(50, 3), space.scores(full)).weight.isfinite().all()
    assert half_whitened(torch.zeros(50, 3)).weight.isfinite().all()


def test_the_strongest_directions_as_coordinates():
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(500, 6, generator=draw) * torch.tensor([1.0, 2, 3, 4, 5, 6])
    found = half_whitened(features, 4).scores(features)
    assert found.shape == (500, 4)
    covariance = torch.cov(found.T)
    torch.testing.assert_close(covariance, covariance.diagonal().diag(), atol=0.05, rtol=0)
    assert (covariance.diagonal().diff() > 0).all()


@pytest.fixture
def features():
    """Of a full network of 8 numbers, and of a narrow one that knows 3 of them, and some noise."""
    draw = torch.Generator().manual_seed(0)
    full = torch.randn(600, 8, generator=draw) * 3 + 1
    return full, full[:, :3] * 2 + 0.1 * torch.randn(600, 3, generator=draw) - 5


def test_the_first_part_is_the_narrowest_widths_and_the_rest_what_it_does_not_tell(features):
    full, narrow = features
    wide_map, narrow_map = common_space(full, narrow)
    assert (wide_map.weight.shape, narrow_map.weight.shape) == ((8, 3 + 8), (8, 3))
    together, own = wide_map.scores(torch.cat([narrow, full], dim=1)), narrow_map.scores(narrow)
    torch.testing.assert_close(own[:, :3], half_whitened(narrow).scores(narrow))
    torch.testing.assert_close(together[:, :3], own[:, :3], atol=1e-4, rtol=0)
    assert (own[:, 3:] == 0).all()
    assert torch.corrcoef(together.T)[:3, 3:].abs().max() < 0.05
    torch.testing.assert_close(together[:, 3:].mean(0), torch.zeros(5), atol=1e-3, rtol=0)


def test_narrow_queries_find_the_same_in_both_galleries_in_the_same_order(features):
    full, narrow = features
    wide_map, narrow_map = common_space(full, narrow)
    wide, own = embedding(wide_map, full, narrow), narrow_map.scores(narrow)
    torch.testing.assert_close(wide[:, :3].norm(dim=1), torch.ones(600))
    torch.testing.assert_close(wide[:, 3:].norm(dim=1), torch.full((600,), REST))
    in_wide, in_own = (F.cosine_similarity(own[:9, None], gallery, dim=2) for gallery in (wide, own))
    torch.testing.assert_close(in_wide * (1 + REST**2) ** 0.5, in_own)


def test_nothing_is_lost_of_the_full_networks_features(features):
    full, narrow = features
    wide = common_space(full, narrow)[0].scores(torch.cat([narrow, full], dim=1))
    assert torch.linalg.matrix_rank(wide - wide.mean(0)) == 8


@pytest.mark.parametrize("narrow", [torch.zeros(600, 3), torch.ones(600, 8)])
def test_narrow_features_that_say_nothing_or_are_as_many(features, narrow):
    full = features[0]
    wide_map, narrow_map = common_space(full, narrow)
    numbers = 8 if narrow.shape[1] == 3 else 16
    assert wide_map.weight.shape == (numbers, narrow.shape[1] + 8)
    assert narrow_map.weight.shape == (numbers, narrow.shape[1])
    assert narrow_map.scores(narrow).isfinite().all()
    wide = embedding(wide_map, full, narrow)
    assert wide.isfinite().all()
    assert wide[:, narrow.shape[1] :].norm(dim=1).min() > 0.4  # the full network is not silenced


def test_a_width_that_comes_later_gets_into_the_same_space():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    images = ImageSet("made", torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8))
    us3l.calibrate(net, torch.randn(16, 3, 8, 8), widths=[1.0, 0.5])
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    both = fit_space(net, images, [1.0, 0.5])
    later = fit_space(net, images, [0.5], full_map=both[1.0])
    torch.testing.assert_close(later[0.5].weight, both[0.5].weight)
    other = ImageSet("other", images.images // 2)
    plain = fit_space(net, other, [0.5])
    moved = fit_space(net, other, [0.5], full_map=both[1.0])  # its images are others, the space is not
    assert not torch.allclose(moved[0.5].bias, plain[0.5].bias, rtol=1e-3)


def test_the_widths_that_make_a_space_have_maps_whatever_is_asked_for():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    images = ImageSet("made", torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8))
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    done: list[int] = []
    found = fit_space(net, images, [0.5], done.append)
    assert set(found) == {net.canonical(width) for width in (1.0, 0.5, 0.25)}
    assert {len(probe.bias) for probe in found.values()} == {64}
    assert sum(done) == images_to_fit(net, images, [0.5]) == 3 * 64
    assert images_to_fit(net, images, [1.0]) == 2 * 64


def test_a_network_of_one_width_has_a_space_too():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8, min_width=1.0)
    images = ImageSet("made", torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8))
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    assert list(fit_space(net, images, [1.0])) == [1.0]
