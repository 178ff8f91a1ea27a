"""Embeddings of one width found among those of another."""

import numpy as np
import pytest
import torch

import us3l
from us3l.commands.main import main
from us3l.data.sources import load
from us3l.evaluation.linear import Probe
from us3l.evaluation.mapping import REST, embedding
from us3l.run import Run
from us3l.run.bundles import read_bundle
from us3l.run.evaluations import RETRIEVALS
from us3l.run.linear_maps import keep_space, read_space
from us3l.runtime.runtime import Runtime
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def images():
    return load("digits", "all", 16, limit=60).images


def test_without_a_map_it_is_said_how_to_get_one(run, small, images, tmp_path):
    small.save(tmp_path / "model")
    with pytest.raises(UserError, match=r"space='shared'\)` fits it"):
        Runtime(tmp_path, space="shared").embed(images[:2].numpy(), width=0.25)
    with pytest.raises(UserError, match="name them by `space_data`"):
        us3l.embed(tmp_path, images, width=0.25, space="shared")
    with pytest.raises(UserError, match="must be 'own' or 'shared'"):
        Runtime(run, space="sherad")


def test_all_widths_have_one_space(run, images, tmp_path):
    found = {}
    for width in (1.0, 0.25):
        embedded = us3l.embed(
            run, images, width=width, space="shared", space_data=images, out=tmp_path / f"{width}.parquet"
        )
        found[width] = embedded.embeddings.values
        assert embedded.embeddings.about["space"] == "shared"
        direct = Runtime(run, space="shared").embed(images.numpy(), width=width)
        np.testing.assert_array_equal(direct, found[width])
    assert {values.shape for values in found.values()} == {(60, 64)}
    full, narrow = (torch.from_numpy(us3l.embed(run, images, width=width).embeddings.values) for width in (1.0, 0.25))
    expected = embedding(Probe(*read_space(Run(run)).linear[1.0]), full, narrow)
    np.testing.assert_allclose(found[1.0], expected, rtol=1e-4, atol=1e-4)
    unit = {width: values / np.linalg.norm(values, axis=1, keepdims=True) for width, values in found.items()}
    similar = unit[0.25] @ unit[1.0].T
    assert similar.diagonal().mean() > similar.mean() + 0.3  # an image is like itself
    alike = unit[0.25] @ unit[0.25].T
    np.testing.assert_allclose(similar, alike / np.sqrt(1 + REST**2), atol=1e-5)  # in the same order in both galleries
    assert set(read_space(Run(run)).linear) == {1.0, 0.25}


def test_the_narrowest_width_has_a_map_before_it_is_asked_for(small, images, tmp_path):
    small.save(tmp_path / "model")
    us3l.embed(tmp_path, images, width=1.0, space="shared", space_data=images)
    assert set(read_space(Run(tmp_path)).linear) == {1.0, 0.25}


def test_a_width_that_joins_later_is_known_to_whoever_runs_already(small, images, tmp_path):
    small.save(tmp_path / "model")
    us3l.embed(tmp_path, images, width=1.0, space="shared", space_data=images)
    runtime = Runtime(tmp_path, space="shared")
    runtime.embed(images.numpy(), width=1.0)
    with pytest.raises(UserError, match=r"no map from 0\.5x"):
        runtime.embed(images.numpy(), width=0.5)
    expected = us3l.embed(tmp_path, images, width=0.5, space="shared", space_data=images).embeddings.values
    np.testing.assert_array_equal(runtime.embed(images.numpy(), width=0.5), expected)


def test_the_narrowest_width_is_calibrated_for_the_full_network(small, images, tmp_path):
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(32, 3, 16, 16), widths=[1.0])
    net.metadata = small.metadata
    net.save(tmp_path / "model")
    settings = {"width": 1.0, "space": "shared", "space_data": "digits"}
    first, again = (us3l.embed(tmp_path, images, **settings).embeddings.values for _ in range(2))
    np.testing.assert_allclose(first, again, rtol=1e-4, atol=1e-5)


def test_a_space_of_an_earlier_version_stays_as_it_is(small, images, tmp_path):
    small.save(tmp_path / "model")
    run = Run(tmp_path)
    keep_space(run, {1.0: (torch.eye(64), torch.zeros(64))}, "earlier")  # which had no part for the narrowest width
    own = us3l.embed(run.folder, images, width=1.0).embeddings.values
    found = {
        width: us3l.embed(run.folder, images, width=width, space="shared", space_data=images).embeddings.values
        for width in (0.25, 1.0)
    }
    np.testing.assert_allclose(found[1.0], own, rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(found[0.25] - own) < np.linalg.norm(own - own.mean(0))  # nearer than their mean
    assert (found[0.25].std(0) > 0).all()  # a new space has zeros there


def test_exported_files_are_proved_and_give_the_same(run, images, tmp_path):
    pytest.importorskip("onnxruntime")
    us3l.embed(run, images, width=0.25, space="shared", space_data=images)
    exported = us3l.export(run, 0.25, "onnx", out=tmp_path / "bundle", space="shared", data="digits")
    assert [path.name for path in exported.files] == ["resnet18-0.25x-shared.onnx"]
    (entry,) = read_bundle(tmp_path / "bundle").entries
    assert (entry.head, entry.classes, entry.features) == ("shared", None, 64)
    with pytest.raises(UserError, match="of the shared space only"):
        Runtime(tmp_path / "bundle")
    runtime = Runtime(tmp_path / "bundle", space="shared")
    expected = Runtime(run, space="shared").embed(images.numpy(), width=0.25)
    np.testing.assert_allclose(runtime.embed(images.numpy(), width=0.25), expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(UserError, match="do not go together"):
        us3l.export(run, 0.25, "onnx", out=tmp_path / "other", space="shared", head="probe", data="digits")


@pytest.mark.parametrize("kind", ["onnx", "safetensors", "torch"])
def test_exported_full_networks_bring_the_narrowest_one_along(run, images, tmp_path, kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    us3l.embed(run, images, width=1.0, space="shared", space_data=images)
    us3l.export(run, [1.0, 0.25], kind, out=tmp_path / "bundle", space="shared", data="digits")
    narrow, full = sorted(read_bundle(tmp_path / "bundle").entries, key=lambda entry: entry.width)
    assert (full.width, full.features, narrow.features) == (1.0, 64, 64)
    net = Run(run).network
    alone = {width: us3l.cost(net, width, size=16).macs for width in (1.0, 0.25)}
    assert (full.macs, narrow.macs) == (sum(alone.values()), alone[0.25])
    if kind == "onnx":
        expected = Runtime(run, space="shared").embed(images.numpy(), width=1.0)
        found = Runtime(tmp_path / "bundle", space="shared").embed(images.numpy(), width=1.0)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_bundle_without_it_says_so(bundle):
    with pytest.raises(UserError, match="no file of the shared space"):
        Runtime(bundle, space="shared")


def test_maps_of_other_weights_are_refused(run, images, tmp_path):
    us3l.embed(run, images, width=0.25, space="shared", space_data=images)
    changed = us3l.load(run / "model")
    with torch.no_grad():
        next(changed.full.parameters()).mul_(1.01)
    us3l.calibrate(changed, torch.randn(32, 3, 16, 16))
    changed.save(tmp_path / "model")
    (tmp_path / "space.safetensors").write_bytes((run / "space.safetensors").read_bytes())
    with pytest.raises(UserError, match="belongs to another model"):
        us3l.embed(tmp_path, images, width=0.25, space="shared", space_data=images)


def test_evaluation_has_a_matrix_of_widths(run, capsys):
    arguments = "--data digits --train-images 100 --test-images 40 --widths 1 0.25 --no-floor --no-quality --retrieval"
    assert main(["evaluate", str(run), *arguments.split()]) == 0
    found = RETRIEVALS.read(Run(run), "digits")
    assert [(row.query, row.gallery) for row in found.rows] == [
        (1.0, 1.0),
        (1.0, 0.25),
        (0.25, 1.0),
        (0.25, 0.25),
    ]
    assert all(0 <= getattr(row, metric) <= 100 for row in found.rows for metric in ("recall", "knn"))
    assert found.rows[0].recall > 20  # of the full network, though untrained; chance is 10
    assert "queries in rows" in capsys.readouterr().out
    with pytest.raises(UserError, match="in memory has no place"):
        us3l.evaluate(
            Run(run).network, "digits", widths=1, floor=False, quality=False, retrieval=True, train_images=100
        )
