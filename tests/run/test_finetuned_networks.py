import shutil

import pytest
import torch

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, load
from us3l.evaluation.measure import evaluate_run
from us3l.evaluation.protocols import EvaluationSettings
from us3l.run import Run
from us3l.run.finetuned_networks import choose_evaluation, finetuned_file, finetuned_network, read_finetuned
from us3l.system.errors import UserError

SETTINGS = EvaluationSettings(widths=(1.0, 0.5), protocol="finetune", epochs=1, batch_size=20)


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8}}
    train, test = load("digits", "train", limit=60), load("digits", "test", limit=40)
    us3l.calibrate(net, torch.randn(32, 3, 8, 8))
    run = Run(tmp_path_factory.mktemp("runs") / "run")
    net.save(run.model)
    evaluate_run(run, train, test, SETTINGS, "digits")
    return run, net, test


def test_the_network_that_was_measured_is_kept(finetuned):
    run, net, test = finetuned
    record = run.evaluations["digits-finetune"]
    assert isinstance(test, ImageSet)
    view = Preprocessing.of(net).apply(test.images)
    for row in record.widths:
        network = finetuned_network(run, net, row.width)
        assert not network.training
        with torch.no_grad():
            right = (network(view).argmax(1) == test.labels).double().mean()
        assert 100 * right == pytest.approx(row.percent("finetuned"))
        assert read_finetuned(run, "digits-finetune", row.width).classes == [str(digit) for digit in range(10)]
    same = next(width / 1000 for width in range(501, 600) if net.canonical(width / 1000) == net.canonical(0.5))
    assert finetuned_network(run, net, same, "digits-finetune")


def test_what_cannot_be_had(finetuned, tmp_path):
    run, net, _ = finetuned
    with pytest.raises(UserError, match=r"not fine-tuned at width 0\.25, only at 1, 0\.5"):
        finetuned_network(run, net, 0.25)
    with pytest.raises(UserError, match="no networks fine-tuned as 'birds', only digits-finetune"):
        finetuned_network(run, net, 0.5, "birds")
    with pytest.raises(UserError, match="has classifiers for birds, digits: choose one, `head='birds'`"):
        choose_evaluation(run, ["birds", "digits"], None, "classifiers for", "head")
    other = Run(shutil.copytree(run.folder, tmp_path / "other"))
    path = finetuned_file(other, "digits-finetune", 0.5)
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(UserError, match="it is cut short or damaged"):
        finetuned_network(other, net, 0.5)
    path.write_bytes(content)
    net = us3l.load(run.model)
    with torch.no_grad():
        net.full.conv1.weight.mul_(2)
    us3l.calibrate(net, torch.randn(32, 3, 8, 8))
    net.save(other.model, overwrite=True)
    with pytest.raises(UserError, match="belongs to another model"):
        finetuned_network(other, net, 0.5)
    shutil.rmtree(other.evaluation_folder)
    with pytest.raises(UserError, match="no fine-tuned networks"):
        finetuned_network(other, net, 0.5)
