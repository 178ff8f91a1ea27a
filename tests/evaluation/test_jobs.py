import subprocess
import sys

import pytest
import torch

import us3l
from us3l.data.sources import ImageSet, load
from us3l.evaluation.jobs import Job
from us3l.evaluation.settings import EvaluationSettings
from us3l.system.errors import UserError

Pair = tuple[ImageSet, ImageSet]


@pytest.fixture(scope="module")
def digits() -> Pair:
    return load("digits", "train", limit=60), load("digits", "test", limit=30)


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8}}
    return net


def test_rows_for_pandas(net, digits: Pair):
    job = Job(net, *digits, EvaluationSettings(widths=(1.0, 0.5, 1.0), floor=False))
    found = job.recorded(job.run()).rows
    assert [row["width"] for row in found] == [1.0, 0.5]
    for row in found:
        assert row["linear_low"] <= row["linear"] <= row["linear_high"]
        assert row["knn_low"] <= row["knn"] <= row["knn_high"]
        assert "finetuned" not in row
    everything = Job(net, *digits, EvaluationSettings(widths="all"))
    assert everything.widths == net.widths[::-1]


@pytest.mark.parametrize("protocol", ["fast", "paper", "finetune"])
def test_every_protocol_computes_on_the_device_asked_for(net, digits: Pair, protocol, monkeypatch):
    """A pretended device: whatever is chosen, networks and images must have gone there, and the network come back."""
    asked = []

    def choose(device):
        asked.append(device)
        return torch.device("cpu")

    monkeypatch.setattr("us3l.evaluation.jobs.choose_device", choose)
    moves = []
    monkeypatch.setattr("us3l.slimmable.Slimmable.to", lambda self, device: moves.append(device) or self)
    epochs = None if protocol == "fast" else 1
    settings = EvaluationSettings(widths=(0.5,), protocol=protocol, epochs=epochs, floor=False, device="cuda")
    assert Job(net, *digits, settings).run().results
    assert (asked, [device.type for device in moves]) == (["cuda"], ["cpu", "cpu"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("protocol", ["fast", "paper", "finetune"])
def test_on_a_gpu(net, digits: Pair, protocol):
    epochs = None if protocol == "fast" else 1
    settings = EvaluationSettings(widths=(1.0, 0.5), protocol=protocol, epochs=epochs, device="cuda")
    assert Job(net, *digits, settings).run().results
    assert next(net.parameters()).device.type == "cpu"


def test_what_does_not_fit_is_said_before_any_work(net, digits: Pair):
    with pytest.raises(UserError, match="outside the range"):
        Job(net, *digits, EvaluationSettings(widths=(0.1,)))
    train, test = digits
    with pytest.raises(UserError, match="have no training image"):
        Job(net, train.subset(torch.nonzero(train.labels < 3)[:, 0]), test)


def test_the_package_offers_its_names_without_importing_torch():
    code = "import sys, us3l.evaluation as e; e.EvaluationSettings; e.Training; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    import us3l.evaluation

    for name in us3l.evaluation.__all__:
        assert getattr(us3l.evaluation, name).__module__.startswith("us3l.evaluation.")
