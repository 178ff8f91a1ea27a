import pytest

from tests.shapes import box_of, draw, voc_annotation, voc_object, write_voc
from us3l.detection.scenes import load
from us3l.system.errors import UserError

BOMB = """<?xml version="1.0"?>
<!DOCTYPE bomb [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<annotation><object><name>&b;</name></object></annotation>"""


@pytest.fixture
def folder(tmp_path):
    return write_voc(tmp_path / "shapes", trainval=4, test=2)


def test_scenes_are_those_drawn(folder):
    train, test = load(folder)
    assert (train.name, train.layout, len(train), len(test)) == ("shapes", "voc", 4, 2)
    assert train.classes == test.classes == ("block", "disc")
    assert not train.skipped
    assert not train.has_masks
    for number, scene in enumerate((*train.scenes, *test.scenes)):
        assert scene.image.name == f"{number:04}.png"
        assert scene.size == (64, 48)
        _, objects = draw(number)
        assert [(train.classes[one.label], one.box) for one in scene.instances] == [
            (kind, box_of(mask)) for kind, mask in objects
        ]
        assert all(one.area == one.box[2] * one.box[3] for one in scene.instances)


def test_the_usual_splits_of_both_years(tmp_path):
    write_voc(tmp_path / "VOC2007", trainval=3, test=2)
    write_voc(tmp_path / "VOC2012", first=10, trainval=4, test=1)  # whose test annotations are not public
    (tmp_path / "VOC2012" / "Annotations" / "0014.xml").unlink()
    train, test = load(tmp_path)
    assert [scene.image.stem for scene in train.scenes] == "0000 0001 0002 0010 0011 0012 0013".split()
    assert [scene.id for scene in train.scenes] == [1, 2, 3, 4, 5, 6, 7]
    assert [scene.image.parts[-3] for scene in test.scenes] == ["VOC2007"] * 2
    assert not test.skipped


def test_the_named_set_lies_in_the_data_root(tmp_path, monkeypatch):
    write_voc(tmp_path / "VOCdevkit" / "VOC2007", trainval=2, test=1)
    monkeypatch.setenv("US3L_DATA", str(tmp_path))
    train, _ = load("voc")
    assert (train.name, len(train)) == ("voc", 2)
    with pytest.raises(UserError, match="voc is expected there"):
        load("voc", root=tmp_path / "elsewhere")


def test_without_a_test_list_val_is_the_test(tmp_path):
    train, test = load(write_voc(tmp_path, train=3, val=1))
    assert (len(train), len(test)) == (3, 1)


def test_splits_by_name(folder):
    train, test = load(folder, train_split="test", test_split="test")
    assert train.scenes == test.scenes
    with pytest.raises(UserError, match=r"no ImageSets/Main/nonsense\.txt, only test, trainval"):
        load(folder, test_split="nonsense")


def test_difficult_objects_and_numbers_with_fractions(folder):
    annotation = voc_annotation(voc_object("disc", (4, 5, 10, 12), difficult=1)).replace("<xmin>5<", "<xmin>5.5<")
    (folder / "Annotations" / "0000.xml").write_text(annotation)
    (instance,) = load(folder)[0].scenes[0].instances
    assert instance.difficult
    assert instance.box == (4.5, 5, 9.5, 12)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"<annotation><object>", "not valid XML"),
        (b"\x00\xff\x00", "not valid XML"),
        (b"", "not valid XML"),
        (BOMB.encode(), "DOCTYPE"),
        (BOMB.replace('"1.0"?', '"1.0" encoding="utf-16"?').encode("utf-16"), "DOCTYPE"),
        (voc_annotation(voc_object("", (1, 2, 3, 4))).encode(), "an object has no name"),
        (voc_annotation("<object><name>disc</name></object>").encode(), "bndbox/xmin is None, not a number"),
        (voc_annotation(voc_object("disc", (float("nan"), 2, 3, 4))).encode(), "bndbox/xmin is 'nan'"),
    ],
)
def test_an_unreadable_annotation_costs_one_image(folder, content, reason):
    path = folder / "Annotations" / "0001.xml"
    path.unlink() if content is None else path.write_bytes(content)
    train, _ = load(folder)
    assert [scene.image.stem for scene in train.scenes] == ["0000", "0002", "0003"]
    (skipped,) = train.skipped
    assert "0001.xml" in skipped
    assert reason in skipped


def test_a_missing_image_costs_one_image(folder):
    (folder / "JPEGImages" / "0005.png").unlink()
    _, test = load(folder)
    assert len(test) == 1
    assert test.skipped[0].endswith("0005.xml: there is no such image in JPEGImages")


def test_boxes_without_area_are_left_out_and_counted(folder):
    annotation = voc_annotation(voc_object("disc", (4, 5, 0, 12)), voc_object("disc", (4, 5, 9, 12)))
    (folder / "Annotations" / "0002.xml").write_text(annotation)
    train, _ = load(folder)
    assert train.empty_boxes == 1
    assert [one.box for one in train.scenes[2].instances] == [(4, 5, 9, 12)]


def test_images_without_objects_are_for_testing_only(folder):
    (folder / "Annotations" / "0002.xml").write_text(voc_annotation())
    train, _ = load(folder)
    assert len(train) == 4
    assert [scene.image.stem for scene in train.learnable().scenes] == ["0000", "0001", "0003"]


def test_what_cannot_be_learned(folder):
    (folder / "Annotations" / "0005.xml").write_text(voc_annotation(voc_object("zebra", (1, 2, 3, 4))))
    with pytest.raises(UserError, match=r"0005\.png: .* class 'zebra', but the training images only have block, disc"):
        load(folder)
    for number in range(4):
        (folder / "Annotations" / f"{number:04}.xml").write_text(voc_annotation())
    with pytest.raises(UserError, match=r"no image of trainval\.txt has an object"):
        load(folder)


def test_nothing_to_test_on(folder):
    (folder / "ImageSets/Main/test.txt").write_text("\n")
    with pytest.raises(UserError, match="none of the test images is usable"):
        load(folder)


def test_folders_of_no_layout(tmp_path):
    with pytest.raises(UserError, match=r"no boxes found there; .*JPEGImages.*instances_train2017"):
        load(tmp_path)
    with pytest.raises(UserError, match="nowhere: no such folder, nor one of voc, coco"):
        load(tmp_path / "nowhere")


def test_limits_choose_the_same_scenes_each_time(folder):
    train, test = load(folder, limit=2)
    assert (len(train), len(test)) == (2, 2)
    assert train.scenes == load(folder, limit=2)[0].scenes
    assert train.classes == ("block", "disc")
    with pytest.raises(UserError, match="limit must be at least 1"):
        load(folder, limit=0)


def test_real_annotations(shared_data):
    train, test = load(shared_data / "voc_bccd")
    assert train.classes == ("Platelets", "RBC", "WBC")
    assert (len(train), len(test)) == (292, 72)
    assert not train.skipped
    assert train.scenes[0].instances[0].box == (259, 176, 232, 200)
