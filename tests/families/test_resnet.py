import pytest
import torch
import torchvision

import us3l

pytestmark = pytest.mark.filterwarnings("ignore:width .* is not calibrated")


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_it_is_torchvisions_network_at_width_1(name):
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)().train()
    ours = us3l.create(name, num_classes=1000).family(1.0).train()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


def test_the_first_weights_are_drawn_as_in_torchvision():
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18()
    torch.manual_seed(0)
    ours = us3l.create("resnet18", num_classes=1000)
    for name, parameter in ours.full.named_parameters():
        expected = theirs.get_parameter(name)
        assert abs(parameter.std(correction=0) - expected.std(correction=0)) < 0.1 * expected.std(correction=0) + 1e-6


@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("resnet50", 2048)])
def test_features_and_stems(name, features):
    for stem, size in (("cifar", 16), ("imagenet", 64)):
        net = us3l.create(name, stem=stem)
        assert net(torch.randn(2, 3, size, size), width=0.5).shape == (2, features // 2)
    small = us3l.create(name, stem="cifar").skeleton(1.0)
    before_pooling = small.layer4(
        small.layer3(small.layer2(small.layer1(torch.empty(1, small.conv1.out_channels, 32, 32, device="meta"))))
    )
    assert before_pooling.shape[-1] == 4


def test_resnet50_params_of_the_paper():
    net = us3l.create("resnet50", num_classes=1000)
    for width, millions in [(1.0, 25.56), (0.75, 14.77), (0.5, 6.92), (0.25, 1.99)]:
        assert round(us3l.cost(net.skeleton(width)).params / 1e6, 2) == millions


def test_shared_equals_carved_for_resnet50():
    torch.manual_seed(0)
    net = us3l.create("resnet50", stem="cifar", base=16)
    images = torch.randn(4, 3, 8, 8)
    for width in (0.25, 0.37, 0.61, 0.84, 1.0):
        torch.testing.assert_close(net(images, width=width), net.carve(width)(images), rtol=1e-4, atol=1e-4)


def test_bad_choices_are_explained():
    with pytest.raises(us3l.UserError, match="did you mean resnet"):
        us3l.create("resnet81")
    with pytest.raises(us3l.UserError, match="unknown stem 'mars'"):
        us3l.create("resnet18", stem="mars")
    with pytest.raises(us3l.UserError, match="depth"):
        us3l.create("resnet18", depth=3)
    with pytest.raises(us3l.UserError, match="base=2"):
        us3l.create("resnet18", base=2)
