"""Export: what files hold, what proves them, and what becomes of a failed one."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy import example, formats
from us3l.deploy.classifiers import Head
from us3l.deploy.exporting import Source, convert, export_network
from us3l.deploy.proof import Evidence
from us3l.evaluation.linear import linear_probe
from us3l.run.bundles import decode_floats, read_bundle

SIZE = 8
FORMATS = ["torch", "safetensors", "onnx", "openvino"]


@dataclass(frozen=True)
class Tiny:
    """A family of three layers, which exports in a moment; the backbones are in test_export_backbones.py."""

    name = "tiny"

    def __call__(self, width):
        channels = round(32 * width)
        layers = nn.Conv2d(3, channels, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        return nn.Sequential(*layers, nn.Flatten())


@pytest.fixture(scope="module")
def evidence():
    return Evidence.of(load("digits", "train", SIZE, 100), load("digits", "test", SIZE, 60), Preprocessing.usual(SIZE))


@pytest.fixture(scope="module")
def source(evidence):
    torch.manual_seed(0)
    net = us3l.Slimmable(Tiny())
    us3l.calibrate(net, evidence.train, widths=[0.37, 1.0])
    return Source(net, SIZE, {"run": "small", "data": "digits"})


@pytest.fixture(scope="module")
def head(source, evidence):
    with torch.no_grad():
        features = source.net.at(0.37)(evidence.train)
    return Head(linear_probe(features, evidence.train_labels), evidence.classes, "digits")


@pytest.fixture(scope="module")
def classifiers(source, evidence, head, tmp_path_factory):
    """A bundle with a head in every format, exported twice."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        for kind in FORMATS:
            export_network(source, 0.37, kind, folder, evidence, head=head, accuracy={"data": "digits", "linear": 80.0})
    return folders


def test_a_bundle_says_what_its_files_are(source, evidence, classifiers):
    bundle = read_bundle(classifiers[0])
    assert [entry.format for entry in bundle.entries] == sorted(FORMATS)
    price = us3l.cost(source.net.at(0.37), (3, SIZE, SIZE))
    for entry in bundle.entries:
        assert (entry.width, entry.int8, entry.params, entry.macs) == (0.37, False, price.params, price.macs)
        assert entry.bytes == sum((bundle.folder / name).stat().st_size for name in entry.files)
        assert (entry.features, entry.classes) == (10, evidence.classes)
        assert entry.accuracy == {"data": "digits", "linear": 80.0}


def test_a_manifest_has_outputs_to_check_a_device_by(source, head, classifiers):
    wanted = {"preprocessing": source.preprocessing.to_plain()}
    images = torch.from_numpy(example.preprocess(classifiers[0] / "check.png", wanted))
    with torch.no_grad():
        expected = head.probe.scores(source.net.at(0.37)(images))[0].numpy()
    for entry in read_bundle(classifiers[0]).entries:
        np.testing.assert_allclose(decode_floats(entry.reference, entry.features), expected, atol=1e-4)


def test_files_are_the_same_each_time_and_do_not_name_this_machine(classifiers):
    first, second = classifiers
    names = {path.name for path in first.iterdir()}
    assert names == {path.name for path in second.iterdir()}
    for name in names:
        content = (first / name).read_bytes()
        assert content == (second / name).read_bytes(), name
        assert str(first).encode() not in content
        assert us3l.__file__.encode() not in content, name


@pytest.mark.parametrize("kind", ["torch", "onnx", "openvino"])
def test_a_file_tells_what_it_is_and_classifies(source, evidence, head, classifiers, kind):
    path = classifiers[0] / f"tiny-0.37x-probe-digits{formats.KINDS[kind].suffixes[0]}"
    about, run = example.OPENERS[path.suffix](path)
    assert (about["us3l"], about["width"], about["run"], about["data"]) == (us3l.__version__, 0.37, "small", "digits")
    assert about["preprocessing"] == source.preprocessing.to_plain()
    assert about["classes"] == evidence.classes
    with torch.no_grad():
        expected = head.probe.scores(source.net.at(0.37)(evidence.test)).numpy()
    np.testing.assert_allclose(run(evidence.test.numpy()), expected, atol=1e-4)


def test_safetensors_say_how_to_build_their_network(evidence, tmp_path):
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, evidence.train, widths=0.37)
    export_network(Source(net, SIZE), 0.37, "safetensors", tmp_path, evidence)
    path = tmp_path / "resnet18-0.37x.safetensors"
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["us3l"])
    plain = us3l.create(about["backbone"], **about["options"]).family(about["width"]).eval()
    plain.load_state_dict(load_file(path))
    torch.testing.assert_close(plain(evidence.test), net.at(0.37)(evidence.test))


def test_safetensors_keep_the_head_beside_the_network(head, classifiers):
    state = load_file(classifiers[0] / "tiny-0.37x-probe-digits.safetensors")
    torch.testing.assert_close(state["head.weight"], head.probe.weight.float())
    assert "network.0.weight" in state


def test_batch_norm_is_folded(source, evidence, classifiers):
    import onnx

    operations = {node.op_type for node in onnx.load(classifiers[0] / "tiny-0.37x-probe-digits.onnx").graph.node}
    assert "Conv" in operations
    assert "BatchNormalization" not in operations
    program = torch.export.load(classifiers[0] / "tiny-0.37x-probe-digits.pt2")
    assert not [node for node in program.graph.nodes if "batch_norm" in str(node.target)]
    network = source.net.carve(0.37)
    torch.testing.assert_close(formats.fold(network)(evidence.test), network(evidence.test), atol=1e-5, rtol=1e-4)


def test_a_network_that_cannot_be_traced_is_not_folded():
    class Picky(nn.Sequential):
        def forward(self, images):
            return super().forward(images if images.mean() > 0 else -images)

    network = Picky(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    assert formats.fold(network) is network


@pytest.mark.parametrize("kind", ["torch", "onnx", "openvino"])
def test_the_example_beside_the_files_runs_without_us3l(evidence, classifiers, tmp_path, kind):
    photo = tmp_path / "photo.png"
    pixels = load("digits", "test", SIZE, 60).images[7]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(photo)
    path = classifiers[0] / f"tiny-0.37x-probe-digits{formats.KINDS[kind].suffixes[0]}"
    block = "import runpy, sys; sys.modules['us3l'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    command = [sys.executable, "-c", block, str(classifiers[0] / "example.py"), str(path), str(photo)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    _, run = example.OPENERS[path.suffix](path)
    assert done.stdout.split()[-1] == evidence.classes[run(evidence.test[7:8].numpy()).argmax()]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_differs_is_an_error_and_leaves_nothing(source, evidence, tmp_path, monkeypatch, kind):
    def spoilt(network, *rest):
        network = source.net.carve(0.37)
        next(network.parameters()).data[0] += 1.0
        write(network, *rest)

    write = formats.KINDS[kind].write
    monkeypatch.setitem(formats.KINDS, kind, replace(formats.KINDS[kind], write=spoilt))
    with pytest.raises(us3l.UserError, match="differs from the original by"):
        export_network(source, 0.37, kind, tmp_path / "new", evidence)
    assert not list(tmp_path.iterdir())


def test_a_file_that_carries_more_than_its_width_is_an_error(source, evidence, tmp_path, monkeypatch):
    def padded(network, size, path, about):
        formats.write_safetensors(network, size, path, about + " " * 500_000)

    kind = replace(formats.KINDS["safetensors"], write=padded)
    monkeypatch.setitem(formats.KINDS, "safetensors", kind)
    with pytest.raises(us3l.UserError, match="weights of this width only"):
        export_network(source, 0.37, "safetensors", tmp_path / "new", evidence)
    assert not list(tmp_path.iterdir())


def test_a_bundle_grows_and_keeps_what_it_had(source, evidence, tmp_path):
    for width in (1.0, 0.37):
        export_network(source, width, "safetensors", tmp_path, evidence)
    before = (tmp_path / "tiny-1x.safetensors").read_bytes()
    with pytest.raises(us3l.UserError, match="already exists"):
        export_network(source, 1.0, "safetensors", tmp_path, evidence)
    export_network(source, 1.0, "safetensors", tmp_path, evidence, accuracy={"data": "new", "knn": 1.0}, overwrite=True)
    assert [(entry.width, entry.accuracy) for entry in read_bundle(tmp_path).entries] == [
        (0.37, None),
        (1.0, {"data": "new", "knn": 1.0}),
    ]
    assert (tmp_path / "tiny-1x.safetensors").read_bytes() == before
    other = us3l.create("mobilenet_v2", stem="cifar", base=8)
    us3l.calibrate(other, evidence.train, widths=1.0)
    with pytest.raises(us3l.UserError, match="another model"):
        export_network(Source(other, SIZE), 1.0, "safetensors", tmp_path, evidence)


def test_an_encoder_and_its_classifiers_lie_beside_each_other(source, evidence, head, tmp_path):
    others = replace(head, data="my photos")
    for given in (head, None, others):
        export_network(source, 0.37, "safetensors", tmp_path, evidence, head=given)
    entries = {next(iter(entry.files)): entry for entry in read_bundle(tmp_path).entries}
    assert {name: (entry.head, entry.features) for name, entry in entries.items()} == {
        "tiny-0.37x.safetensors": (None, 12),
        "tiny-0.37x-probe-digits.safetensors": ("probe-digits", 10),
        "tiny-0.37x-probe-my-photos.safetensors": ("probe-my-photos", 10),
    }


def test_a_fine_tuned_network_is_exported_with_its_classifier(source, evidence, head, tmp_path):
    body = source.net.carve(0.37)
    with torch.no_grad():
        next(body.parameters()).mul_(1.5)  # as training would have moved it
        expected = head.probe.scores(body(evidence.test)).numpy()
    tuned = replace(head, network=body)
    for kind in ("safetensors", "onnx"):
        entry, _ = export_network(source, 0.37, kind, tmp_path, evidence, head=tuned)
        assert entry.head == "finetuned-digits"
    _, run = example.OPENERS[".onnx"](tmp_path / "tiny-0.37x-finetuned-digits.onnx")
    np.testing.assert_allclose(run(evidence.test.numpy()), expected, atol=1e-4)


def test_a_bundle_holds_networks_of_one_model(source, evidence, tmp_path):
    export_network(replace(source, weights="a" * 64), 1.0, "safetensors", tmp_path, evidence)
    export_network(replace(source, weights="a" * 64), 0.37, "safetensors", tmp_path, evidence)
    assert {entry.weights for entry in read_bundle(tmp_path).entries} == {"a" * 64}
    with pytest.raises(us3l.UserError, match="another model"):
        export_network(replace(source, weights="b" * 64), 0.37, "torch", tmp_path, evidence)


def test_checksums_cover_the_example(source, evidence, tmp_path):
    export_network(source, 1.0, "safetensors", tmp_path, evidence)
    (tmp_path / "example.py").write_text("print('harm')")
    with pytest.raises(us3l.UserError, match=r"example\.py is not the file that was exported"):
        read_bundle(tmp_path)
    export_network(source, 0.37, "safetensors", tmp_path, evidence)  # one's own edit stays, but nobody vouches for it
    assert (tmp_path / "example.py").read_text() == "print('harm')"
    assert set(read_bundle(tmp_path).others) == {"benchmark.py", "check.png"}


@pytest.mark.parametrize("content", ["print('harm')", Path(example.__file__).read_text()])
def test_an_example_without_a_checksum_gets_one_only_if_it_is_ours(source, evidence, tmp_path, content):
    """Bundles of the first format have none: a stranger's file must not get one from us."""
    export_network(source, 1.0, "safetensors", tmp_path, evidence)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"others": {}}))
    (tmp_path / "example.py").write_text(content)
    export_network(source, 0.37, "safetensors", tmp_path, evidence)
    assert ("example.py" in read_bundle(tmp_path).others) == ("harm" not in content)


def test_a_full_disk_is_one_clear_line(tmp_path):
    script = f"""if True:
        import resource, us3l
        from pathlib import Path
        from torch import nn
        from us3l.deploy.exporting import Source, export_network
        from us3l.deploy.proof import Evidence

        net = us3l.Slimmable(lambda width: nn.Sequential(nn.Flatten(), nn.Linear(192, round(100 * width))))
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # Python ignores the signal
        for kind in {list(FORMATS)}:
            try:
                export_network(Source(net, 8), 1.0, kind, Path(kind), Evidence.noise(8))
            except us3l.UserError as error:
                print(error)
    """
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    lines = [f"cannot write to {kind}: File too large; nothing was exported" for kind in FORMATS]
    assert done.stdout.splitlines() == lines, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_openvino_writes(source, evidence, tmp_path, monkeypatch):
    """As it was seen on a disk of 720 KB, which the ONNX step before it does not fill."""

    def full(*_, **__):
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr("openvino.save_model", full)
    with pytest.raises(us3l.UserError, match=r"cannot write to .*: is the disk full\? .*; nothing was exported"):
        export_network(source, 0.37, "openvino", tmp_path / "new", evidence)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported(source, evidence, head, tmp_path):
    with pytest.raises(us3l.UserError, match="not calibrated"):
        export_network(source, 0.9, "torch", tmp_path, evidence)
    with pytest.raises(us3l.UserError, match="onnx and openvino"):
        export_network(source, 0.37, "torch", tmp_path, evidence, int8=True)
    with pytest.raises(us3l.UserError, match="name some by `data`"):
        export_network(source, 0.37, "onnx", tmp_path, Evidence.noise(SIZE), int8=True)
    with pytest.raises(us3l.UserError, match="does not fit width 1"):
        export_network(source, 1.0, "torch", tmp_path, evidence, head=head)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(source, evidence, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setitem(sys.modules, "executorch.exir", None)
    for kind, extra in (("openvino", "deploy"), ("executorch", "executorch")):
        with pytest.raises(us3l.UserError, match=rf"us3l\[{extra}\]"):
            export_network(source, 0.37, kind, tmp_path / "new", evidence)
    assert not list(tmp_path.iterdir())


def test_noise_serves_when_there_is_no_image(source, tmp_path):
    _, proof = export_network(source, 0.37, "safetensors", tmp_path, Evidence.noise(SIZE))
    assert proof.images == "noise"


def test_any_plain_network_converts(tmp_path, evidence):
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 5)).eval()
    path = convert(network, "onnx", SIZE, tmp_path / "0.25")
    assert path == tmp_path / "0.25.onnx"
    import onnxruntime

    found = onnxruntime.InferenceSession(path).run(None, {"images": evidence.test.numpy()})[0]
    np.testing.assert_allclose(found, network(evidence.test).detach().numpy(), atol=1e-5)


def test_executorch(source, evidence, tmp_path):
    pytest.importorskip("executorch", reason="executorch is not installed: pip install 'us3l[executorch]'")
    entry, proof = export_network(source, 0.37, "executorch", tmp_path, evidence)
    assert proof.difference < 1e-4
    path = tmp_path / "tiny-0.37x.pte"
    about, run = example.OPENERS[".pte"](path)
    assert (about["width"], entry.files.keys()) == (0.37, {path.name})
    for count in (1, 7):
        expected = source.net.at(0.37)(evidence.test[:count]).numpy()
        np.testing.assert_allclose(run(evidence.test[:count].numpy()), expected, atol=1e-4)
