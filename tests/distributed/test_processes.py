"""Several processes compute what one would; so do one process's shares of a batch."""

import os
import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from reliability import processes
from us3l.data.sources import load
from us3l.data.streamed import Batch
from us3l.distributed.peers import ALONE, SyncedBatchNorm
from us3l.training.trainer import split

pytestmark = pytest.mark.slow
CASES = ["in memory", "vit simclr", "mixed depth", "queue", "accumulated", "shards"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    digits = load("digits", limit=20)
    for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
        path = folder / str(int(label)) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


@pytest.fixture(scope="module")
def by_two(folder):
    file = folder.with_suffix(".pt")
    command = [sys.executable, "-m", "reliability.processes", str(folder), "2", str(file), *CASES]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    logs = "".join(file.with_suffix(f".{rank}.log").read_text() for rank in range(2))
    assert done.returncode == 0, done.stderr + logs
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_does(by_two, folder, case):
    alone = processes.run_case(case, str(folder))
    shared = by_two[case]
    for mine, theirs in zip(alone["indices"], shared["indices"], strict=True):
        assert torch.equal(mine, theirs)
        assert len(set(mine.tolist())) == 8
    for mine, theirs in zip(alone["losses"], shared["losses"], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(alone["learner"], shared["learner"], rtol=1e-7, atol=1e-9)


def test_one_process_goes_on_with_what_two_began(by_two, folder):
    shared = by_two["in memory"]
    resumed = processes.run_case("in memory", str(folder), state=shared["before last step"])
    assert len(resumed["losses"]) == 1
    torch.testing.assert_close(resumed["losses"][-1], shared["losses"][-1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(resumed["learner"], shared["learner"], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3, 3)])
def test_the_synced_batch_norm_of_one_process_is_batch_norm(shape):
    x, weight, bias = (
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (shape, shape[1:2], shape[1:2])
    )
    target = torch.randn(shape, dtype=torch.float64)

    def run():
        y = F.batch_norm(x, None, None, weight, bias, training=True)
        return y, *torch.autograd.grad((y * target).sum(), (x, weight, bias))

    expected = run()
    with SyncedBatchNorm(ALONE):
        found = run()
        frozen = F.batch_norm(x, torch.zeros(4).double(), torch.ones(4).double())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(frozen, x / (1 + 1e-5) ** 0.5)


def test_shares_of_a_batch():
    view = torch.randn(7, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    batch = Batch((view, view + 1), torch.arange(7), torch.arange(7) * 10)
    shares = split(batch, 3)
    assert [len(share) for share in shares] == [3, 2, 2]
    assert torch.equal(torch.cat([share.views[1] for share in shares]), view + 1)
    assert torch.equal(shares[1].labels, torch.tensor([30, 40]))
