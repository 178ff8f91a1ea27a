import base64
import io
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.data.sources import ImageSet, load
from us3l.reporting.gallery import (
    CLUSTERS,
    choose_mapped,
    choose_queries,
    contact_sheet,
    files_of,
    gallery,
    layout,
    work,
)
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(16, 3, 16, 16))
    return net


@pytest.fixture(scope="module")
def digits():
    return load("digits", "test", 16, limit=100)


def test_widths_without_statistics_are_not_shown(digits):
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(16, 3, 16, 16), [1.0, 0.5])
    counts = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gallery(net, digits, 16, counts.append)["widths"] == [1.0, 0.5]
    assert sum(counts) == work(net, digits)


def test_labelled(net, digits):
    counts = []
    found = gallery(net, digits, 16, counts.append)
    assert json.loads(json.dumps(found)) == found
    assert sum(counts) == work(net, digits)
    assert found["widths"] == [1.0, 0.25]
    names = found["images"]
    assert [names[index] for index in found["queries"]] == list("01345689")  # of ten classes
    for rows in found["neighbours"]:
        assert all(len(set(row)) == 6 and query not in row for query, row in zip(found["queries"], rows, strict=True))
    assert [found["groups"][group] for group in found["group_of"]] == [names[index] for index in found["mapped"]]
    assert [len(points) for points in found["layouts"]] == [100, 100]
    assert found == gallery(net, digits, 16)


def test_unlabelled(net, digits):
    found = gallery(net, replace(digits, labels=None, classes=None), 16)
    assert not found["labelled"]
    assert found["groups"] == [f"cluster {number + 1}" for number in range(CLUSTERS)]
    assert set(found["group_of"]) == set(range(CLUSTERS))


def test_images_are_called_by_the_names_that_they_have(digits, tmp_path):
    assert files_of(digits) is None  # they have numbers only, as CIFAR's
    for name in ("a", "b"):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png")
    (tmp_path / "aa.png").write_bytes(b"damaged")
    assert files_of(load(tmp_path, "all", 16)) == ["a.png", "b.png"]


def test_neighbours_are_similar_images(net):
    """Of pairs of nearly equal images, each finds its twin at both widths."""
    torch.manual_seed(0)
    originals = torch.randint(0, 256, (15, 3, 4, 4)).repeat_interleave(4, 2).repeat_interleave(4, 3)
    twins = (originals + torch.randint(-3, 4, originals.shape)).clamp(0, 255)
    images = ImageSet("twins", torch.cat([originals, twins]).to(torch.uint8))
    found = gallery(net, images, 16)
    for rows in found["neighbours"]:
        assert [row[0] for row in rows] == [(query + 15) % 30 for query in found["queries"]]


def test_many_classes():
    labels = torch.arange(100).repeat(30)
    mapped, shown = choose_mapped(labels)
    assert (len(mapped), len(shown)) == (300, 10)
    assert set(labels[mapped].tolist()) == set(shown)
    assert labels[choose_queries(len(labels), labels)].unique().numel() == 8


def test_too_few_images(net, digits):
    with pytest.raises(UserError, match="digits has only 19 images; a gallery needs 20"):
        gallery(net, digits.subset(torch.arange(19)), 16)


def test_the_map_keeps_groups_together():
    torch.manual_seed(0)
    centres = 10 * torch.eye(3, 8).repeat_interleave(20, 0)
    wide, narrow = layout([centres + torch.randn(60, 8) * 0.1, (centres + torch.randn(60, 8) * 0.1)[:, :4]])
    for points in (wide, narrow):
        assert points.min() == 0
        assert points.max() == 1
        groups = points.reshape(3, 20, 2)
        assert groups.std(axis=1).max() < 0.5 * np.linalg.norm(groups.mean(axis=1)[0] - groups.mean(axis=1)[1])


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # of scikit-learn, in what we do not use
def test_the_map_of_a_collapsed_network():
    points = layout([torch.ones(30, 8)])[0]
    assert np.isfinite(points).all()


def test_the_contact_sheet():
    images = torch.zeros(5, 3, 64, 64, dtype=torch.uint8)
    images[4, 0] = 255
    sheet = contact_sheet(images)
    assert (sheet["columns"], sheet["rows"]) == (3, 2)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["uri"].split(",")[1]))))
    assert pixels.shape == (2 * 48, 3 * 48, 3)
    assert pixels[72, 72, 0] > 200  # the fifth: second row, second column
    assert pixels[72, 24].max() < 50
