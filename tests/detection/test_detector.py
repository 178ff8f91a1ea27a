import pytest
import torch
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

import us3l
from us3l.detection.detector import build_detector, detector_of
from us3l.detection.schedule import DetectorTraining, LearningRates
from us3l.system.errors import UserError

SMALL = DetectorTraining(channels=8, image_size=32)
FAMILIES = ["resnet18", "resnet50", "mobilenet_v2"]


def network(name="resnet18", stem="imagenet", width=0.5):
    """A calibrated network, whose statistics are not those of a new one."""
    torch.manual_seed(1)
    net = us3l.create(name, stem=stem, base=8)
    us3l.calibrate(net, torch.randn(4, 3, 64, 64), widths=[width])
    return net


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("stem", "strides"), [("imagenet", (4, 8, 16, 32)), ("cifar", (1, 2, 4, 8))])
def test_levels_and_anchors_follow_the_strides(name, stem, strides):
    detector = detector_of(network(name, stem), 0.5, 3, False, DetectorTraining(channels=8), "coco").eval()
    maps = detector.backbone(torch.randn(1, 3, 64, 64)).values()
    assert [64 // found.shape[-1] for found in maps] == [*strides, 2 * strides[-1]]
    assert [size for (size,) in detector.rpn.anchor_generator.sizes] == [8 * s for s in (*strides, 2 * strides[-1])]
    assert detector.transform.min_size[-1] == 200 * strides[0]
    assert detector.transform.max_size == round(200 * strides[0] * 1333 / 800)
    assert detector.roi_heads.box_predictor.cls_score.out_features == 4


SUBNETS = [("resnet18", "1d1-0.5d2-1d1-0.5d1"), ("mobilenet_v2", "1d1-0.5d1-1d2-0.5d1-1d3-0.5d1-1d1")]


@pytest.mark.parametrize(("name", "width"), [*((name, 0.5) for name in FAMILIES), *SUBNETS])
def test_the_backbone_computes_what_the_carved_network_does(name, width):
    net = network(name, "cifar", width)
    carved, images = net.carve(width), torch.randn(2, 3, 32, 32)
    body = detector_of(net, net.check(width), 3, False, SMALL, "voc").train().backbone.body
    *_, last = maps = list(body(images).values())
    assert [32 // found.shape[-1] for found in maps] == [1, 2, 4, 8]
    torch.testing.assert_close(last.mean((2, 3)), carved(images), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in body.modules())
    assert any(isinstance(module, FrozenBatchNorm2d) for module in body.modules())
    assert all(parameter.requires_grad for parameter in body.parameters())


def test_norms_can_be_trained():
    body = detector_of(network(), 0.5, 3, False, DetectorTraining(channels=8, norms="trained"), "voc").backbone.body
    assert any(isinstance(module, nn.BatchNorm2d) and module.weight.requires_grad for module in body.modules())


def test_the_network_itself_is_left_alone():
    net = network()
    before = {name: tensor.clone() for name, tensor in net.weights().items()}
    state = torch.get_rng_state()
    detector = detector_of(net, 0.5, 3, True, SMALL, "coco")
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.weights().items())
    assert torch.equal(state, torch.get_rng_state())


def test_masks_and_seeds():
    net = network()
    first, again = (detector_of(net, 0.5, 3, True, SMALL, "coco") for _ in range(2))
    other = detector_of(net, 0.5, 3, True, DetectorTraining(channels=8, image_size=32, seed=1), "coco")
    assert first.roi_heads.has_mask()
    assert first.roi_heads.mask_predictor.mask_fcn_logits.out_channels == 4
    head = "roi_heads.box_head.fc6.weight"
    assert torch.equal(first.state_dict()[head], again.state_dict()[head])
    assert not torch.equal(first.state_dict()[head], other.state_dict()[head])
    (found,) = first.eval()([torch.rand(3, 40, 50)])
    assert found["masks"].shape[1:] == (1, 40, 50)


def test_preprocessing_is_the_models_own():
    net = network()
    assert detector_of(net, 0.5, 3, False, SMALL, "voc").transform.image_mean == [0.485, 0.456, 0.406]
    net.metadata = {"preprocessing": {"size": 32, "mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 2.0]}}
    transform = detector_of(net, 0.5, 3, False, SMALL, "voc").transform
    assert (transform.image_mean, transform.image_std) == ([0.1, 0.2, 0.3], [1.0, 1.0, 2.0])


def test_random_sizes_in_training():
    def sizes(layout):
        training = DetectorTraining(channels=8, image_size=800)
        family = us3l.create("resnet18", base=8).family
        return build_detector(family, family(0.5), 2, False, training, layout, {}).transform

    assert sizes("coco").min_size == (640, 672, 704, 736, 768, 800)
    assert sizes("voc").min_size[0] == 480


def test_what_cannot_carry_a_detector():
    vit = us3l.create("vit_tiny", image_size=32, patch=8, depth=1)
    with pytest.raises(UserError, match="a ResNet, a MobileNetV2, or a family of your own"):
        detector_of(vit, 0.5, 3, False, SMALL, "voc")
    with pytest.raises(UserError, match=r"width 0\.25 has no batch-norm statistics"):
        detector_of(network(), 0.25, 3, False, SMALL, "voc")


def test_the_usual_schedules():
    assert DetectorTraining().plan("coco") == LearningRates(90_000, 0.02, 1000, (60_000, 80_000))
    assert DetectorTraining().plan("voc") == LearningRates(24_000, 0.02, 100, (18_000, 22_000))
    assert DetectorTraining(schedule=0.5, batch=8).plan("coco") == LearningRates(90_000, 0.01, 1000, (60_000, 80_000))
    assert DetectorTraining(steps=90, lr=0.5).plan("coco") == LearningRates(90, 0.5, 9, (60, 80))
    assert DetectorTraining(schedule=1e-9).plan("coco").steps == 1


@pytest.mark.parametrize("name", ["schedule", "steps", "batch", "lr", "image_size", "channels", "regions"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_settings_that_make_no_sense(name, value):
    with pytest.raises(UserError, match=f"{name} must be above 0"):
        DetectorTraining(**{name: value})
