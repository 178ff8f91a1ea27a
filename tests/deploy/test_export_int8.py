"""INT8: small, close to the float network, and an error where it is not."""

import pytest
import torch

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy import formats, proof
from us3l.deploy.example import OPENERS
from us3l.deploy.exporting import Source, export_network, write
from us3l.deploy.proof import Evidence, prove_int8
from us3l.run.bundles import read_bundle

pytest.importorskip("nncf", reason="needs us3l[deploy]")
SIZE = 16
WIDTHS = {"resnet18": us3l.Subnet((0.5,) * 4, (1,) * 4), "vit_tiny": 0.5}


@pytest.fixture(scope="module")
def evidence():
    return Evidence.of(load("digits", "train", SIZE, 60), load("digits", "test", SIZE, 100), Preprocessing.usual(SIZE))


def source_of(name, evidence, **options):
    torch.manual_seed(0)
    net = us3l.create(name, **options)
    us3l.calibrate(net, evidence.train, widths=WIDTHS[name])
    return Source(net, SIZE)


@pytest.fixture(scope="module")
def sources(evidence):
    vit = {"image_size": SIZE, "patch": 8, "depth": 1, "heads": 2, "base": 32}
    return {
        "resnet18": source_of("resnet18", evidence, stem="cifar", base=16),
        "vit_tiny": source_of("vit_tiny", evidence, **vit),
    }


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_int8_is_small_and_close(sources, evidence, tmp_path, name, kind):
    entry, found = export_network(
        sources[name], WIDTHS[name], kind, tmp_path, evidence, int8=True, accuracy={"data": "digits", "knn": 90.0}
    )
    assert found.cosine > 0.98
    assert found.judge == "kNN"
    bundle = read_bundle(tmp_path)
    weights = sum(tensor.numel() * 4 for tensor in sources[name].net.carve(WIDTHS[name]).state_dict().values())
    last = tmp_path / list(entry.files)[-1]
    assert last.name.startswith(f"{name}-{WIDTHS[name]:g}x-int8")
    assert entry.accuracy is None  # that of the float network is not its own
    assert 0.2 * weights < last.stat().st_size < 0.25 * weights + 90_000
    assert bundle.entries == [entry]


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_depthwise_convolutions_stay_in_float(evidence, tmp_path, kind):
    torch.manual_seed(0)
    depthwise, pointwise = torch.nn.Conv2d(3, 3, 3, groups=3), torch.nn.Conv2d(3, 3, 1)

    def error_of(layer):
        network = torch.nn.Sequential(layer, torch.nn.Flatten()).eval().requires_grad_(False)
        path, *_ = write(network, kind, SIZE, tmp_path / f"net{formats.KINDS[kind].suffixes[0]}", {}, evidence.train)
        _, run = OPENERS[path.suffix](path)
        return proof.difference(run(evidence.test.numpy()), proof.outputs_of(network, evidence.test))

    assert error_of(depthwise) < 1e-5
    assert error_of(pointwise) > 1e-3


def linear(weight):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, 4, bias=False))
    network[1].weight.data = weight
    return network.eval()


def test_the_proof_is_the_accuracy_with_labels_and_the_cosine_without(evidence, monkeypatch):
    monkeypatch.setattr(proof, "ENOUGH", len(evidence.test))
    generator = torch.Generator().manual_seed(0)
    network = linear(torch.randn(4, 3 * SIZE**2, generator=generator))
    other = linear(torch.randn(4, 3 * SIZE**2, generator=generator))
    unlabelled = Evidence("photos", evidence.train, evidence.test)

    def run(by):
        return lambda images: proof.outputs_of(by, torch.from_numpy(images))

    same = prove_int8(network, run(network), unlabelled, None)
    assert (same.judge, round(same.cosine, 5)) == (None, 1.0)
    with pytest.raises(us3l.UserError, match="cosine"):
        prove_int8(network, run(other), unlabelled, None)
    labelled = prove_int8(network, run(network), evidence, None)
    assert labelled.float_accuracy == labelled.int8_accuracy > 20
    blind = linear(torch.zeros(4, 3 * SIZE**2))
    with pytest.raises(us3l.UserError, match=r"accuracy \(kNN\) falls"):
        prove_int8(network, run(blind), evidence, None)
    monkeypatch.setattr(proof, "ENOUGH", len(evidence.test) + 1)
    with pytest.raises(us3l.UserError, match="cosine"):
        prove_int8(network, run(blind), evidence, None)


def test_with_a_head_its_own_accuracy_counts(evidence, monkeypatch):
    monkeypatch.setattr(proof, "ENOUGH", len(evidence.test))
    templates = torch.stack([evidence.train[evidence.train_labels == label].mean(0).flatten() for label in range(10)])
    network = linear(templates - templates.mean(0))
    found = prove_int8(
        network, lambda images: proof.outputs_of(network, torch.from_numpy(images)), evidence, evidence.classes
    )
    assert (found.judge, found.float_accuracy) == ("head", found.int8_accuracy)
    assert found.float_accuracy > 50
    with pytest.raises(us3l.UserError, match=r"accuracy \(head\) falls"):
        prove_int8(
            network, lambda images: -proof.outputs_of(network, torch.from_numpy(images)), evidence, evidence.classes
        )


def test_a_failed_quantisation_leaves_nothing(sources, evidence, tmp_path, monkeypatch):
    def spoilt(network, size, path, about, *_):
        formats.write_onnx(torch.nn.Sequential(network, torch.nn.Threshold(1e9, 0.0)).eval(), size, path, about)

    kind = formats.KINDS["onnx"]
    monkeypatch.setitem(formats.KINDS, "onnx", formats.Kind(kind.suffixes, kind.write, kind.graph, spoilt))
    with pytest.raises(us3l.UserError, match="INT8 changes the outputs too much"):
        export_network(sources["vit_tiny"], 0.5, "onnx", tmp_path / "new", evidence, int8=True)
    assert not list(tmp_path.iterdir())
