import torch
from torch.nn import functional as F

from us3l.objective.heads import Queue


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
