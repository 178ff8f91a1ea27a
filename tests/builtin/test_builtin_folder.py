"""The network in the box."""

import pytest
import torch

import us3l
from us3l.builtin import FILES, PACKAGED, builtin_folder
from us3l.commands.main import main
from us3l.data.preprocessing import Preprocessing


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("US3L_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_width_is_calibrated_and_gives_features():
    net = us3l.load("builtin")
    size = Preprocessing.of(net).size
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    for width in (0.25, 0.35, 0.5, 0.75, 1):
        assert net.calibrated(width)
        features = net.at(width)(images)
        assert features.shape == (2, 1280)
        assert features.isfinite().all()
        assert not torch.allclose(features[0], features[1])


def test_the_package_is_small():
    assert sum((PACKAGED / name).stat().st_size for name in FILES) < 12e6


def test_results_lie_beside_a_copy(cache):
    folder = builtin_folder()
    assert folder.parent == cache
    assert us3l.Run("builtin").folder == folder == builtin_folder()


def test_a_copy_that_was_cut_short_is_completed():
    folder = builtin_folder()
    (folder / "model.json").unlink()
    assert (builtin_folder() / "model.json").read_bytes() == (PACKAGED / "model.json").read_bytes()


def test_without_a_cache_it_is_read_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("US3L_CACHE", "off")
    assert builtin_folder() == PACKAGED
    (tmp_path / "file").touch()
    monkeypatch.setenv("US3L_CACHE", str(tmp_path / "file"))
    assert builtin_folder() == PACKAGED


def test_it_embeds_a_folder_of_images(tmp_path):
    assert main(["embed", "builtin", "digits", "--width", "0.5", "--out", str(tmp_path / "digits.parquet")]) == 0
    assert (tmp_path / "digits.parquet").is_file()
