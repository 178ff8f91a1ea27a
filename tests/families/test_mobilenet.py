import pytest
import torch
import torchvision

import us3l


def test_it_is_torchvisions_network_at_width_1():
    torch.manual_seed(0)
    theirs = torchvision.models.mobilenet_v2().eval()
    net = us3l.create("mobilenet_v2", num_classes=1000)
    net.load_plain(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(net.at(1.0)(images), theirs(images), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.eval()(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1.0, 0.75, 0.5, 0.63, 0.25])
def test_a_carved_network_is_torchvisions_of_that_width(width):
    torch.manual_seed(0)
    net = us3l.create("mobilenet_v2", num_classes=10)
    images = torch.randn(4, 3, 32, 32)
    us3l.calibrate(net, images, [width])
    theirs = torchvision.models.MobileNetV2(num_classes=10, width_mult=width).eval()
    theirs.load_state_dict(net.carve(width).state_dict())
    # Where stem and first stage have as many channels as each other, torchvision adds a shortcut that width 1 lacks.
    shortcut = theirs.features[1].use_res_connect
    assert shortcut == (width == 0.25)
    theirs.features[1].use_res_connect = False
    torch.testing.assert_close(theirs(images), net.at(width)(images), rtol=1e-5, atol=1e-5)


def test_channels_follow_the_authors_rule():
    family = us3l.create("mobilenet_v2").family
    assert family.signature(1.0) == (32, 16, 24, 32, 64, 96, 160, 320, 1280)  # type: ignore[attr-defined]
    assert family.signature(0.25) == (8, 8, 8, 8, 16, 24, 40, 80, 1280)  # type: ignore[attr-defined]
    narrow = family(0.37)
    # round8(0.37 * 24) = 8, expanded six times
    assert narrow.features[3].conv[0][0].out_channels == 6 * 8
    assert narrow.features[-1][0].out_channels == 1280


def test_strides():
    def side(stem: str, size: int) -> int:
        with torch.device("meta"):
            return us3l.create("mobilenet_v2", stem=stem).full.features(torch.empty(2, 3, size, size)).shape[-1]

    assert side("imagenet", 224) == 7
    assert side("cifar", 32) == 4
    small = us3l.create("mobilenet_v2", stem="cifar").family(1.0)
    assert small.features[0][0].stride == small.features[2].conv[1][0].stride == (1, 1)


@pytest.mark.filterwarnings("ignore:width .* is not calibrated")
def test_widths_per_stage():
    torch.manual_seed(0)
    net = us3l.create("mobilenet_v2", stem="cifar")
    width = (0.5, 1.0, 0.25, 0.37, 0.75, 0.5, 1.0)
    assert net.signature(width) == (16, 8, 24, 8, 24, 72, 80, 320, 1280)
    images = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(net(images, width=width), net.carve(width)(images), rtol=1e-5, atol=1e-5)
    with pytest.raises(us3l.UserError, match="7 numbers"):
        net(images, width=(0.5, 0.5, 0.5, 0.5))
