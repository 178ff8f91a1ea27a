import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shapes import IDS, box_of, change, draw, write_coco
from us3l.detection.coco import decode_mask, encode_mask, run_lengths
from us3l.detection.scenes import load
from us3l.system.errors import UserError


@pytest.fixture
def folder(tmp_path):
    return write_coco(tmp_path / "shapes", train2017=3, val2017=2)


def annotations(folder, split="train2017"):
    return folder / "annotations" / f"instances_{split}.json"


def edit(path, key, value):
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_scenes_are_those_drawn(folder):
    train, test = load(folder)
    assert (train.layout, len(train), len(test)) == ("coco", 3, 2)
    assert dict(zip(train.classes, train.category_ids, strict=True)) == IDS
    assert train.has_masks
    for number, scene in enumerate((*train.scenes, *test.scenes)):
        assert scene.id == 100 + number
        _, objects = draw(number)
        for one, (kind, mask) in zip(scene.instances, objects, strict=True):
            assert train.classes[one.label] == kind
            assert one.box == box_of(mask)
            assert one.area == mask.sum()
            np.testing.assert_array_equal(decode_mask(one.segmentation, 48, 64), mask)


def test_splits(folder):
    train, test = load(folder, train_split="val2017", test_split="val2017")
    assert train.scenes == test.scenes
    with pytest.raises(UserError, match=r"no annotations/instances_test2017\.json, only train2017, val2017"):
        load(folder, test_split="test2017")
    annotations(folder, "val2017").unlink()
    with pytest.raises(UserError, match=r"no annotations/instances_val\.\.\.\.json, only train2017"):
        load(folder)


def test_crowds_and_objects_without_masks(folder):
    counts = [0, 48 * 64]
    change(annotations(folder), iscrowd=1, segmentation={"size": [48, 64], "counts": counts})
    train, _ = load(folder)
    assert train.scenes[0].instances[0].crowd
    assert decode_mask(train.scenes[0].instances[0].segmentation, 48, 64).all()
    change(annotations(folder), segmentation=[])
    assert not load(folder)[0].has_masks


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"category_id": 4}, "annotation 1 is of category 4, which is not in the file"),
        ({"image_id": 4}, "annotation 1 is of image 4, which is not in the file"),
        ({"image_id": "100"}, "image_id is '100'"),
        ({"bbox": [1, 2, 3]}, r"annotation 1 has the bbox \[1, 2, 3\]"),
        ({"bbox": [1, 2, 3, float("inf")]}, r"annotation 1 has the bbox \[1, 2, 3, inf\]"),
        ({"bbox": None}, "annotation 1 has the bbox None"),
        ({"area": "large"}, "annotation 1 has the area 'large'"),
        ({"iscrowd": 7}, "iscrowd 7"),
        ({"segmentation": [[1, 2, 3, 4]]}, "neither polygons nor run lengths"),
        ({"segmentation": [[1, 2, 3, 4, 5, 1e9]]}, "neither polygons nor run lengths"),
        ({"segmentation": {"size": [48, 64], "counts": [1, 2]}}, "neither polygons nor run lengths"),
        ({"segmentation": {"size": [48, 64], "counts": "~~~garbage"}}, "neither polygons nor run lengths"),
        ({"segmentation": {"size": [10**9, 10**9], "counts": [0, 10**18]}}, "neither polygons nor run lengths"),
    ],
)
def test_wrong_annotations_are_named(folder, changes, reason):
    change(annotations(folder), **changes)
    with pytest.raises(UserError, match=rf"instances_train2017\.json .*{reason}"):
        load(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read"),
        ("[" * 200_000, "cannot be read"),
        ("[]", "holds no JSON object"),
        ('{"images": [], "annotations": []}', "has no list of categories"),
        ('{"images": [], "annotations": [], "categories": []}', "has no categories"),
        ('{"images": [], "annotations": [], "categories": [{"id": true, "name": "a"}]}', "id is True"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1, "name": 2}]}', "name is 2"),
        ('{"images": {}, "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "has no list of images"),
    ],
)
def test_wrong_files_are_named(folder, content, reason):
    annotations(folder).write_text(content)
    with pytest.raises(UserError, match=rf"instances_train2017\.json .*{reason}"):
        load(folder)


def test_images_stay_in_their_folder(folder):
    edit(annotations(folder), "annotations", [])
    for name in ("../../secret.png", "/etc/secret.png"):
        edit(annotations(folder), "images", [{"id": 1, "file_name": name, "width": 5, "height": 5}])
        with pytest.raises(UserError, match="names an image outside its folder"):
            load(folder)


def test_missing_images_are_skipped(folder):
    (folder / "train2017" / "0001.png").unlink()
    train, _ = load(folder)
    assert [scene.id for scene in train.scenes] == [100, 102]
    assert train.skipped[0].endswith("0001.png: there is no such image")
    for path in (folder / "train2017").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="lists 3 images, of which none is in"):
        load(folder)
    (folder / "train2017").rmdir()
    with pytest.raises(UserError, match="there is no folder"):
        load(folder)


def test_a_name_that_no_system_allows_is_a_missing_image(folder):
    edit(annotations(folder), "annotations", [])
    size = {"width": 5, "height": 5}
    known = next((folder / "train2017").iterdir()).name
    edit(
        annotations(folder),
        "images",
        [{"id": 1, "file_name": known, **size}, {"id": 2, "file_name": "9" * 999, **size}],
    )
    train, _ = load(folder)
    assert [scene.id for scene in train.scenes] == [1]


def test_boxes_without_area_are_left_out_and_counted(folder):
    change(annotations(folder), bbox=[3, 4, 5, 0])
    train, _ = load(folder)
    assert train.empty_boxes == 1
    assert len(train.scenes[0].instances) == 1


def test_both_splits_have_the_same_categories(folder):
    edit(annotations(folder, "val2017"), "categories", [{"id": 3, "name": "block"}, {"id": 7, "name": "ball"}])
    with pytest.raises(UserError, match=r"categories of .* are not the same"):
        load(folder)


def test_the_named_set_lies_in_the_data_root(tmp_path):
    write_coco(tmp_path / "coco", train2017=1, val2017=1)
    assert load("coco", root=tmp_path)[0].name == "coco"


def test_real_annotations(shared_data):
    train, test = load(shared_data / "coco")
    assert (len(train), len(test), len(train.classes)) == (72, 36, 80)
    assert sum(one.crowd for scene in train.scenes for one in scene.instances) == 5
    assert train.has_masks


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40), st.floats(0, 1))
def test_run_lengths_are_those_of_the_mask(seed: int, height: int, width: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < share
    lengths = run_lengths(encode_mask(mask)["counts"])
    assert np.array_equal(np.repeat(np.arange(len(lengths)) % 2 == 1, lengths), mask.ravel(order="F"))


@pytest.mark.parametrize("text", ["P", "0P", "oooooooooo", "\x00", "é", "~"])
def test_what_is_no_run_length(text: str) -> None:
    with pytest.raises(ValueError):
        run_lengths(text)
