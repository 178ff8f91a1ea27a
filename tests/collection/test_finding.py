import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.commands.main import main
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve images of two classes; one is there twice."""
    place, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for label in ("<a>", "b"):
        (place / label).mkdir()
        for number in range(6):
            pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / label / f"{number}.png")
    shutil.copy(place / "<a>" / "2.png", place / "b" / "5.png")
    return place


@pytest.fixture(scope="module")
def index(run, photos, tmp_path_factory):
    return us3l.embed(run, photos, width=0.5, out=tmp_path_factory.mktemp("index") / "e.parquet").path


def test_an_image_finds_itself_and_its_copy(run, photos, index, tmp_path):
    found = us3l.find(index, photos / "<a>" / "2.png", run=run, count=3, page=tmp_path / "found.html")
    assert [row["file"] for row in found.rows[:2]] == ["<a>/2.png", "b/5.png"]
    assert [row["label"] for row in found.rows[:2]] == ["<a>", "b"]
    assert found.rows[1]["similarity"] == pytest.approx(1, abs=1e-6)
    assert found.rows[2]["similarity"] < 0.9999
    text = (tmp_path / "found.html").read_text()
    assert text.count("<img ") == 4  # the query and three others
    assert "&lt;a&gt;/2.png" in text
    assert "<a>" not in text
    with pytest.raises(UserError, match="already exists"):
        us3l.find(index, photos, run=run, page=tmp_path / "found.html")


def test_a_file_of_embeddings_is_a_query(index):
    found = us3l.find(index, index, count=1)
    assert len(found.queries) == 12
    assert all(row["similarity"] > 0.9999 for row in found.rows)


def test_near_duplicates(index, tmp_path, capsys):
    assert main(["find", str(index), "--at-least", "0.99999", "--page", str(tmp_path / "d.html")]) == 0
    said = capsys.readouterr().out
    assert "2 of 12 images are near-duplicates, in 1 groups" in said
    assert "b/5.png" in said
    assert (tmp_path / "d.html").read_text().count("<img ") == 2


def test_images_of_one_part_that_are_in_another(run, photos, tmp_path, capsys):
    """Copies of training images among those to test on, which nobody mentioned."""
    data = tmp_path / "data"
    for part in ("train", "test"):
        shutil.copytree(photos, data / part)
    for place, path in enumerate(sorted((data / "test").rglob("*.png"))):
        pixels = np.asarray(Image.open(path))
        if place == 0:
            Image.fromarray(pixels).save(path, compress_level=0)  # the same pixels, in other bytes
        elif place < 9:
            Image.fromarray(np.roll(pixels, 8, axis=(0, 2))).save(path)
    found = us3l.find(data, across=("train", "test"))
    assert found.queries == ["test/b/3.png", "test/b/4.png", "test/b/5.png"]
    assert [row["file"] for row in found.rows] == ["train/b/3.png", "train/b/4.png", "train/<a>/2.png"]
    near = us3l.find(data, across=("train", "test"), run=run, width=0.5, at_least=0.99999)
    assert near.queries == ["test/<a>/0.png", *found.queries]
    assert main(["find", str(data), "--across", "train", "test", "--page", str(tmp_path / "both.html")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 of 12 images of test are among the 12 of train" in said
    assert (tmp_path / "both.html").read_text().count("<img ") == 6
    with pytest.raises(UserError, match="two parts"):
        us3l.find(data, across=("train", "train"))


def test_pictures_that_are_gone_are_left_out(run, photos, tmp_path):
    moved = shutil.copytree(photos, tmp_path / "photos")
    made = us3l.embed(run, moved, width=0.25, out=tmp_path / "e.parquet")
    shutil.rmtree(moved)
    us3l.find(made.path, made.path, count=2, page=tmp_path / "found.html")
    text = (tmp_path / "found.html").read_text()
    assert "<img " not in text
    assert "b/5.png" in text


def test_any_width_searches_a_file_of_the_shared_space(run, photos, index, tmp_path):
    us3l.embed(run, photos, width=0.25, space="shared", space_data=photos)
    made = us3l.embed(run, photos, space="shared", out=tmp_path / "e.parquet")
    found = us3l.find(made.path, photos / "b", run=run, width=0.25, count=1)
    assert len(found.rows) == 6
    with pytest.raises(UserError, match="cannot be compared"):
        us3l.find(index, photos, run=run, width=0.25)
    with pytest.raises(UserError, match="cannot be compared"):
        us3l.find(made.path, index)


def test_what_is_missing_is_told(index, photos, run, tmp_path, capsys):
    assert main(["find", str(index), str(photos)]) == 2
    assert "--run RUN" in capsys.readouterr().err
    assert main(["find", str(tmp_path / "none.parquet"), str(photos)]) == 2
    assert "no file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["find", str(index), str(tmp_path / "empty"), "--run", str(run)]) == 2
    assert "no images in this folder" in capsys.readouterr().err
    torch.manual_seed(1)
    other = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(other, torch.randn(16, 3, 16, 16), widths=[0.5])
    other.metadata = us3l.load(run / "model").metadata
    other.save(tmp_path / "model")
    with pytest.raises(UserError, match="different models"):
        us3l.find(index, photos, run=tmp_path)
