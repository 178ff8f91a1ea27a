import numpy as np
import pytest
import torch

import us3l
from tests.shapes import draw, write_coco, write_voc
from us3l.data.preprocessing import Preprocessing
from us3l.detection.detector import detector_of
from us3l.detection.detector_training import load_detector, train_detector
from us3l.detection.examples import training_batches
from us3l.detection.inference import evaluate_detector, find_objects
from us3l.detection.scenes import load
from us3l.detection.schedule import DetectorTraining
from us3l.system.errors import UserError
from us3l.system.stopping import Interrupted

TINY = DetectorTraining(steps=4, batch=2, lr=0.01, image_size=24, channels=8, regions=16)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    shapes = torch.from_numpy(np.stack([draw(number)[0] for number in range(8)])).permute(0, 3, 1, 2)
    us3l.calibrate(net, Preprocessing.usual(48).apply(shapes), widths=[1.0, 0.5])
    return net


@pytest.fixture
def voc(tmp_path):
    return load(write_voc(tmp_path / "voc", trainval=5, test=2))


@pytest.fixture
def coco(tmp_path):
    return load(write_coco(tmp_path / "coco", train2017=5, val2017=2))


def weights(trainer):
    return trainer.detector.state_dict()


def test_an_interrupted_training_ends_as_an_uninterrupted_one(net, coco, tmp_path):
    """To the bit, masks and random sizes included; with trained norms, so that buffers count as well."""
    training = DetectorTraining(**(vars(TINY) | {"norms": "trained"}))
    torch.manual_seed(1)
    whole = train_detector(net, 0.5, coco[0], True, training, tmp_path / "whole.pt")
    torch.manual_seed(2)
    asked = iter([False, True])
    path = tmp_path / "parts.pt"
    with pytest.raises(Interrupted, match="stopped after step 2 of 4"):
        train_detector(net, 0.5, coco[0], True, training, path, asked_to_stop=lambda: next(asked))
    torch.manual_seed(3)
    seen = []
    resumed = train_detector(
        net, 0.5, coco[0], True, training, path, resume=True, progress=lambda _, losses: seen.append(len(losses))
    )
    assert seen == [3, 4]
    assert resumed.losses == whole.losses
    assert len(set(whole.losses)) == 4
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(resumed)[name], tensor), name
    buffers = whole.optimiser.state_dict()["state"]
    for index, kept in resumed.optimiser.state_dict()["state"].items():
        assert torch.equal(kept["momentum_buffer"], buffers[index]["momentum_buffer"])


def test_the_seed_decides(net, voc, tmp_path):
    other = DetectorTraining(**(vars(TINY) | {"seed": 1}))
    path = tmp_path / "x.pt"
    first, again = (train_detector(net, 0.5, voc[0], False, TINY, path).losses for _ in range(2))
    assert first == again
    assert train_detector(net, 0.5, voc[0], False, other, path).losses != first


def test_other_processes_decode_the_same(net, voc, tmp_path):
    alone, helped = (
        train_detector(net, 0.5, voc[0], False, TINY, tmp_path / f"{n}.pt", workers=n).losses for n in (0, 2)
    )
    assert alone == helped


def test_a_finished_training_is_not_trained_again(net, voc, tmp_path):
    first = train_detector(net, 0.5, voc[0], False, TINY, tmp_path / "x.pt")
    again = train_detector(net, 0.5, voc[0], False, TINY, tmp_path / "x.pt", resume=True)
    assert again.losses == first.losses
    assert all(torch.equal(weights(again)[name], tensor) for name, tensor in weights(first).items())


def test_states_are_saved_now_and_then(net, voc, tmp_path):
    saved = []

    def look(*_):
        path = tmp_path / "x.pt"
        saved.append(len(torch.load(path, weights_only=True)["losses"]) if path.exists() else 0)

    train_detector(net, 0.5, voc[0], False, TINY, tmp_path / "x.pt", save_every=3, progress=look)
    assert saved == [0, 0, 3, 4]


def test_a_resumed_training_keeps_settings_and_data(net, voc, tmp_path):
    path = tmp_path / "x.pt"
    with pytest.raises(UserError, match=r"there is no .* to continue from"):
        train_detector(net, 0.5, voc[0], False, TINY, path, resume=True)
    train_detector(net, 0.5, voc[0], False, TINY, path)
    with pytest.raises(UserError, match=r"batch was 2, is 3"):
        train_detector(net, 0.5, voc[0], False, DetectorTraining(**(vars(TINY) | {"batch": 3})), path, resume=True)
    with pytest.raises(UserError, match=r"width was 0\.5, is 1\.0"):
        train_detector(net, 1.0, voc[0], False, TINY, path, resume=True)
    with pytest.raises(UserError, match="images or their boxes are not those"):
        train_detector(net, 0.5, voc[0].limited(4), False, TINY, path, resume=True)
    state = torch.load(path, weights_only=True)
    for broken in ({"about": {}}, {"model": {}}, {"optimiser": 5}):
        torch.save(state | broken, path)
        with pytest.raises(UserError, match="does not fit this detector"):
            train_detector(net, 0.5, voc[0], False, TINY, path, resume=True)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot read"):
        train_detector(net, 0.5, voc[0], False, TINY, path, resume=True)
    torch.save({"step": 3}, path)
    with pytest.raises(UserError, match="it holds no detector"):
        train_detector(net, 0.5, voc[0], False, TINY, path, resume=True)


def test_a_loss_that_is_not_finite_stops_at_once(net, voc, tmp_path):
    wild = DetectorTraining(**(vars(TINY) | {"lr": 1e12, "steps": 40}))
    with pytest.raises(UserError, match=r"the loss is (nan|inf) at step \d+: lower `lr`"):
        train_detector(net, 0.5, voc[0], False, wild, tmp_path / "x.pt", save_every=1)
    kept = torch.load(tmp_path / "x.pt", weights_only=True)
    assert np.isfinite(kept["losses"]).all()


def test_damaged_images_are_left_out_and_named(net, voc, tmp_path):
    train, test = voc
    train.scenes[1].image.write_bytes(b"")
    test.scenes[0].image.write_bytes(b"no image")
    alone = DetectorTraining(**(vars(TINY) | {"batch": 1, "steps": 5}))  # the damaged image is a batch
    trainer = train_detector(net, 0.5, train, False, alone, tmp_path / "x.pt")
    assert trainer.step == 5
    (skipped,) = trainer.skipped
    assert skipped.startswith(str(train.scenes[1].image))
    findings = evaluate_detector(trainer.detector, test)
    assert [scene.id for scene in findings.scenes.scenes] == [2]
    assert findings.scenes.skipped == (f"{test.scenes[0].image}: not an image",)
    for scene in (*train.scenes, *test.scenes):
        scene.image.write_bytes(b"")
    with pytest.raises(UserError, match="every training image is damaged"):
        train_detector(net, 0.5, train, False, TINY, tmp_path / "y.pt")
    with pytest.raises(UserError, match="none of the test images can be used"):
        evaluate_detector(trainer.detector, test)


def test_a_detector_from_its_file_finds_the_same(net, coco, tmp_path):
    path = tmp_path / "x.pt"
    trainer = train_detector(net, 0.5, coco[0], True, TINY, path)
    loaded = load_detector(path)
    assert loaded.classes == ["block", "disc"]
    assert find_objects(loaded, coco[1])[0] == find_objects(trainer.detector, coco[1])[0]
    state = torch.load(path, weights_only=True)
    torch.save(state | {"about": state["about"] | {"backbone": "nonsense"}}, path)
    with pytest.raises(UserError, match="nonsense"):
        load_detector(path)
    torch.save(state | {"about": state["about"] | {"classes": ["one"]}}, path)
    with pytest.raises(UserError, match="cannot build the detector"):
        load_detector(path)


def test_detections_do_not_depend_on_batches(net, voc):
    detector = detector_of(net, 0.5, 2, False, TINY, "voc")
    done = []
    one, _ = find_objects(detector, voc[0], batch=1, progress=done.append)
    three, _ = find_objects(detector, voc[0], batch=3)
    assert done == [1] * 5
    assert len(one) == len(three) > 0
    for left, right in zip(one, three, strict=True):
        assert left["image_id"] == right["image_id"]
        assert left["score"] == pytest.approx(right["score"], rel=1e-4)


def test_batches_cover_each_epoch_and_start_anywhere():
    batches = list(training_batches(5, 2, 0, 10, seed=3))
    keys = [key for batch in batches for key in batch]
    for epoch in range(4):
        assert sorted(index for index, _ in keys[5 * epoch : 5 * epoch + 5]) == [0, 1, 2, 3, 4]
    assert [index for index, _ in keys[:5]] != [index for index, _ in keys[5:10]]
    assert 4 < sum(mirror for _, mirror in keys) < 16
    assert list(training_batches(5, 2, 7, 10, seed=3)) == batches[7:]
    assert len(next(training_batches(2, 5, 0, 3, seed=0))) == 5


def test_mask_rcnn_learns_a_handful_of_images_by_heart(net, coco, tmp_path):
    train = coco[0].limited(2)
    training = DetectorTraining(steps=40, batch=2, lr=0.02, image_size=48, channels=16, regions=64, norms="trained")
    trainer = train_detector(net, 1.0, train, True, training, tmp_path / "x.pt")
    before = evaluate_detector(detector_of(net, 1.0, 2, True, training, "coco"), train)
    after = evaluate_detector(trainer.detector, train)
    assert after.masks is not None
    assert before.boxes.overall.ap50 < 20
    assert after.boxes.overall.ap50 > 90
    assert after.masks.overall.ap50 > 90
