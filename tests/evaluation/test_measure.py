import pytest
import torch

import us3l
from us3l.data.sources import ImageSet, load
from us3l.evaluation.measure import evaluate_network, evaluate_run, plan_evaluation
from us3l.evaluation.prepare import chosen_widths
from us3l.evaluation.protocols import EvaluationSettings
from us3l.run import Run
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
    record, _ = evaluate_network(net, *digits, EvaluationSettings(widths=(1.0, 0.5, 1.0), floor=False))
    assert [row["width"] for row in record.rows] == [1.0, 0.5]
    for row in record.rows:
        assert row["linear_low"] <= row["linear"] <= row["linear_high"]
        assert row["knn_low"] <= row["knn"] <= row["knn_high"]
        assert "finetuned" not in row
    assert chosen_widths(net, "all") == net.widths[::-1]


@pytest.mark.parametrize("protocol", ["fast", "paper", "finetune"])
def test_every_protocol_computes_on_the_device_asked_for(net, digits: Pair, protocol, monkeypatch):
    """A pretended device: whatever is chosen, networks and images must have gone there, and the network come back."""
    asked = []

    def choose(device):
        asked.append(device)
        return torch.device("cpu")

    monkeypatch.setattr("us3l.evaluation.measure.choose_device", choose)
    moves = []
    monkeypatch.setattr("us3l.slimmable.Slimmable.to", lambda self, device: moves.append(device) or self)
    epochs = None if protocol == "fast" else 1
    settings = EvaluationSettings(widths=(0.5,), protocol=protocol, epochs=epochs, floor=False, device="cuda")
    assert evaluate_network(net, *digits, settings)[0].widths
    assert (asked, [device.type for device in moves]) == (["cuda"], ["cpu", "cpu"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("protocol", ["fast", "paper", "finetune"])
def test_on_a_gpu(net, digits: Pair, protocol):
    epochs = None if protocol == "fast" else 1
    settings = EvaluationSettings(widths=(1.0, 0.5), protocol=protocol, epochs=epochs, device="cuda")
    assert evaluate_network(net, *digits, settings)[0].widths
    assert next(net.parameters()).device.type == "cpu"


def test_what_does_not_fit_is_said_before_any_work(net, digits: Pair):
    with pytest.raises(UserError, match="outside the range"):
        evaluate_network(net, *digits, EvaluationSettings(widths=(0.1,)))
    train, test = digits
    with pytest.raises(UserError, match="have no training image"):
        plan_evaluation(net, train.subset(torch.nonzero(train.labels < 3)[:, 0]), test, EvaluationSettings())
    with pytest.raises(UserError, match="has no classifier of its own"):
        evaluate_network(net, *digits, EvaluationSettings(protocol="classifier"))


def test_a_folder_that_cannot_be_written_to_is_said_before_any_work(net, digits: Pair, tmp_path, monkeypatch):
    """The work was done, and then it was found out."""
    run = Run(tmp_path / "run")
    net.save(run.model)
    run.evaluation_folder.write_text("a file where the folder should be, as root can write anywhere else")
    monkeypatch.setattr("us3l.evaluation.measure.evaluate_network", lambda *_, **__: pytest.fail("worked in vain"))
    with pytest.raises(UserError, match=r"cannot write to .*eval"):
        evaluate_run(run, *digits, EvaluationSettings(widths=(0.5,)), "digits")
