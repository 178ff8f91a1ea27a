import pytest
import torch
from torch import nn
from torch.nn import functional as F

from us3l.objective.heads import HeadLinear, Queue, per_view, projector, suits_onednn


def test_the_queue_wraps_and_keeps_the_latest():
    torch.manual_seed(0)
    queue = Queue(7, 2)
    torch.testing.assert_close(queue.rows.norm(dim=1), torch.ones(7))
    history = [*queue.rows.clone()]
    for count in (3, 3, 3, 5, 7, 1, 20):
        new = F.normalize(torch.randn(count, 2), dim=1)
        queue.push(new)
        history += [*new]
        # As a set: the ring starts anywhere.
        assert sorted(queue.rows.tolist()) == sorted(row.tolist() for row in history[-7:])
    assert 0 <= queue.place < 7


def test_the_oldest_goes_first():
    queue = Queue(4, 1)
    for number in range(6):
        queue.push(torch.tensor([[float(number)]]))
    assert queue.rows.flatten().tolist() == [4, 5, 2, 3]
    assert queue.place == 2


def test_a_head_on_several_views_is_the_head_on_each():
    torch.manual_seed(0)
    head = projector(10, 8, 6, final_norm=True).double()
    views = [torch.randn(count, 10, dtype=torch.float64) for count in (5, 7)]
    together, apart = per_view(head, views), tuple(head(view) for view in views)
    torch.testing.assert_close(together, apart)

    def gradients(outputs):
        return torch.autograd.grad(sum((output**3).sum() for output in outputs), list(head.parameters()))

    torch.testing.assert_close(gradients(together), gradients(apart))


def test_what_is_no_sequence_of_layers_takes_each_view():
    views = torch.randn(3, 4), torch.randn(3, 4)
    assert all(ours is view for ours, view in zip(per_view(nn.Identity(), views), views, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [12, 5])
def test_a_linear_layer_takes_leading_columns_and_learns_as_torchs_own(width, bias):
    torch.manual_seed(0)
    layer = HeadLinear(12, 7, bias=bias)
    x = torch.randn(9, 24)[:, :width].requires_grad_()  # not contiguous
    output = layer(x)
    expected = F.linear(x.double(), layer.weight[:, :width].double(), layer.bias.double() if bias else None)
    torch.testing.assert_close(output, expected.float())
    towards = torch.randn_like(output)
    learned = [x, *layer.parameters()]
    ours = torch.autograd.grad(output, learned, towards)
    theirs = torch.autograd.grad(expected, learned, towards.double())
    torch.testing.assert_close(ours, theirs)


def test_which_products_go_through_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    x = torch.zeros(2, 3)
    assert suits_onednn(x)
    assert not any(suits_onednn(other) for other in (x.double(), x.bfloat16(), x.to("meta")))
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits_onednn(x)
        assert HeadLinear(3, 4)(x).dtype == torch.bfloat16
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not suits_onednn(x)
