"""Operations that learn in 32 bits on CPUs, in mixed precision too."""

import pytest
import torch
from torch import Tensor, nn

from us3l.families import family
from us3l.families.mixed_precision import StridedDepthwise, learned_in_32_bits

torch.manual_seed(0)


def square(*inputs: Tensor) -> Tensor:
    """A matrix product, which autocast computes in bfloat16."""
    return inputs[0] @ inputs[-1]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_only_what_learns_in_mixed_precision_is_in_32_bits(mixed: bool, learns: bool) -> None:
    x = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed), torch.set_grad_enabled(learns):
        result = learned_in_32_bits(square, x, x)
        assert torch.is_autocast_enabled("cpu") == mixed  # as before
    assert result.dtype == (torch.bfloat16 if mixed and not learns else torch.float32)


def test_half_precision_that_is_no_autocast_stays() -> None:
    assert learned_in_32_bits(square, torch.ones(2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_strided_depthwise_convolution_is_the_plain_one() -> None:
    plain = nn.Conv2d(6, 6, 5, 2, 2, groups=6, bias=False)
    ours = StridedDepthwise.like(plain)
    assert ours.weight is plain.weight
    x = torch.randn(2, 6, 9, 8)
    assert torch.equal(ours(x), plain(x))
    with torch.autocast("cpu", torch.bfloat16):
        mixed, rounded = ours(x), plain(x)
    assert torch.equal(mixed, plain(x))  # in 32 bits, as without mixed precision
    assert torch.allclose(mixed, rounded.float(), atol=0.05)


@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0"])
def test_every_strided_depthwise_convolution_is_one(name: str) -> None:
    """All that a network has; at any width, with torchvision's and timm's names and first weights."""
    if name == "efficientnet_b0":
        pytest.importorskip("timm")
    network = family(name, base=16)(0.5)
    strided = {
        part for part in network.modules() if isinstance(part, nn.Conv2d) and part.groups > 1 and part.stride != (1, 1)
    }
    assert len(strided) == 4
    assert all(isinstance(part, StridedDepthwise) for part in strided)


def test_attention_learns_in_32_bits() -> None:
    network = family("vit_tiny", base=16, image_size=16, patch=8, depth=1, heads=2)(1.0)
    seen: list[torch.dtype] = []
    block = next(part for part in network.modules() if type(part).__name__ == "Attention")
    block.proj.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(2, 3, 16, 16)).sum().backward()
        with torch.no_grad():
            network(torch.randn(2, 3, 16, 16))
    assert seen == [torch.float32, torch.bfloat16]
