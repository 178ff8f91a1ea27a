"""Loading from the Hugging Face Hub and publishing there, against a small hub on this machine."""

import errno
import socket
import sys

import numpy as np
import pytest
import torch

import us3l
from tests.fake_hub import point_at
from tests.made_runs import make_run
from us3l import hub as ours
from us3l.collection.vectors import read_embeddings
from us3l.commands.main import main
from us3l.run import Run
from us3l.run.linear_maps import Probes, keep_space, probes_file, write_probes
from us3l.system.errors import Caution, UserError

library = pytest.importorskip("huggingface_hub", reason="needs us3l[hub]")
from huggingface_hub import constants  # noqa: E402

NAME = "anna/birds"
MODEL = ["README.md", "model.json", "statistics.safetensors", "weights.safetensors"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Evaluated, with classifiers and a space of its own."""
    run = make_run(tmp_path_factory.mktemp("made") / "run", profiled=False)
    linear = {1.0: (torch.zeros(3, 64), torch.arange(3.0))}
    write_probes(probes_file(run, "digits"), Probes(linear, ["a", "b", "c"], "digits", run.weights))
    keep_space(run, {1.0: (torch.eye(64), torch.ones(64))}, "digits")
    return run


@pytest.fixture
def published(hub, run):
    us3l.publish(run, NAME)
    hub.asked.clear()
    return hub


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    from PIL import Image

    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(draw.integers(0, 256, (20, 20, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def kept(tmp_path):
    """What was fetched, by commit."""
    home = tmp_path / "home" / "us3l" / "anna--birds"
    return [path for path in home.iterdir() if path.name != "revisions"] if home.exists() else []


def test_a_run_comes_back_with_all_that_belongs_to_its_model_and_nothing_of_the_machine(hub, run, tmp_path):
    done = us3l.publish(run, NAME, private=True)
    assert (done.name, done.url, done.changed) == (f"hf:{NAME}", f"{hub.url}/{NAME}", True)
    files = hub.files(NAME)
    own = ["eval/digits.probes.safetensors", "space.safetensors", ".gitattributes"]
    assert sorted(files) == sorted([*MODEL, *own])
    assert sorted(row["file"] for row in done.rows) == sorted([*MODEL, *own[:2]])
    assert hub.private[NAME]
    card = files["README.md"].decode()
    assert f'us3l.load("hf:{NAME}")' in card
    assert "80.0" in card  # what was evaluated
    assert not any(str(run.folder.parent).encode() in content for content in files.values())
    back = Run(f"hf:{NAME}")
    assert back.network.digest == run.network.digest
    assert us3l.load(f"hf-hub:{NAME}@{done.commit}").digest == run.network.digest
    assert sorted(path.name for path in back.folder.iterdir()) == sorted([*MODEL, "eval", "space.safetensors"])
    assert kept(tmp_path) == [back.folder]
    assert not any(path.is_symlink() for path in back.folder.rglob("*"))
    assert not us3l.publish(run, NAME).changed


@pytest.mark.usefixtures("published")
def test_it_stands_wherever_a_folder_of_a_model_does(run, images, tmp_path, capsys):
    from us3l.training.initial import open_pretrained

    name = f"hf:{NAME}"
    local = us3l.Runtime(run.folder, space="shared")
    np.testing.assert_array_equal(us3l.Runtime(name, space="shared").embed(images), local.embed(images))
    assert open_pretrained(name).sha256 == open_pretrained(run.folder).sha256
    assert [row["class"] for row in us3l.predict(name, images).rows] == ["c"] * 3
    assert main(["embed", name, str(images), "--width", "0.5", "--out", str(tmp_path / "e.parquet")]) == 0
    expected = us3l.embed(run, images, width=0.5).embeddings.values
    np.testing.assert_array_equal(read_embeddings(tmp_path / "e.parquet").values, expected)
    assert capsys.readouterr().err == ""


def test_it_is_fetched_once_and_nothing_is_reported(published):
    first = us3l.Run(f"hf:{NAME}").folder
    asked = [line for line in published.asked if "resolve" in line]
    assert us3l.Run(f"hf:{NAME}").folder == first
    assert [line for line in published.asked if "resolve" in line] == asked
    assert all(line.split()[1].startswith((f"/api/models/{NAME}", f"/{NAME}/resolve")) for line in published.asked)
    assert not any("torch" in agent for agent in published.agents)


def test_only_the_files_that_a_model_has_are_fetched(published):
    files = published.files(NAME)
    strange = [
        "run.py",
        "pytorch_model.bin",
        "config.yaml",
        "eval/x.json",
        "a/../../up.json",
        "eval/deep/x.probes.safetensors",
    ]
    published.put(NAME, files | dict.fromkeys(strange, b"import os"))
    folder = us3l.Run(f"hf:{NAME}").folder
    fetched = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert fetched == files.keys() - {".gitattributes"}
    assert not any(file in line for line in published.asked for file in strange)


def test_a_revision_is_a_branch_or_a_commit(published, run):
    first = published.branches[NAME, "main"]
    other = us3l.load(run.folder)
    with torch.no_grad():
        next(other.full.parameters()).mul_(1.5)
    us3l.calibrate(other, torch.randn(16, 3, 16, 16))
    us3l.publish(other, f"{NAME}@v2")
    assert us3l.load(f"hf:{NAME}").digest == run.network.digest
    assert us3l.load(f"hf:{NAME}@v2").digest == other.digest
    assert "eval/digits.probes.safetensors" not in published.files(NAME, "v2")  # of other weights
    us3l.publish(other, NAME)
    assert us3l.load(f"hf:{NAME}").digest == other.digest
    assert us3l.load(f"hf:{NAME}@{first}").digest == run.network.digest


def test_a_card_that_somebody_has_edited_stays(published, run):
    mine = b"---\nlicense: mit\n---\nMy birds."
    published.put(NAME, published.files(NAME) | {"README.md": mine, "notes.txt": b"mine"})
    assert not us3l.publish(run, NAME).changed
    assert published.files(NAME)["README.md"] == mine
    assert "notes.txt" in published.files(NAME)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hf:anna/none", "there is no model anna/none on"),
        ("hf:anna/secret", "there is no model anna/secret on"),
        ("hf:anna/gated", "granted access"),
        (f"hf:{NAME}@v9", "no revision 'v9'"),
        ("hf:birds", "write USER/NAME"),
        ("hf:../../etc/passwd", "write USER/NAME"),
        ("hf:anna/other", "is not a model of us3l"),
        ("hf:anna/half", "is not whole: there is no statistics.safetensors"),
        ("hf:anna/huge", "larger than a model of us3l can be"),
        ("hf:anna/long", "model.json is larger than 64 MiB"),
        ("hf:anna/broken", "500"),
        ("hf:anna/lie", "did not arrive as it is on the Hub"),
        ("hf:anna/odd", "model.json"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_and_leaves_nothing(published, monkeypatch, capsys, tmp_path, name, line):
    files = published.files(NAME)
    published.put("anna/secret", files, private=True)
    published.put("anna/gated", files)
    published.gated.add("anna/gated")
    published.put("anna/other", {"config.json": b"{}", "pytorch_model.bin": b""})
    published.put("anna/half", {file: files[file] for file in ("model.json", "weights.safetensors")})
    published.put("anna/huge", files | {"projector.safetensors": bytes(2**20)})
    published.put("anna/long", files | {"model.json": bytes(2**10)})
    published.put("anna/lie", files)
    published.put("anna/odd", files | {"model.json": b"[1"})
    published.fails["anna/broken"] = 500
    if "lie" in name:
        published.lies["weights.safetensors"] = bytes(len(files["weights.safetensors"]))
    if "huge" in name:
        monkeypatch.setattr(ours, "LARGEST", 2**20)
    if "long" in name:
        monkeypatch.setattr(ours, "LARGEST_TEXT", 64 * 2**20)
        published.trees[published.branches["anna/long", "main"]]["model.json"] = Claimed(2**27)
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert main(["report", name, "--out", str(tmp_path / "page.html")]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "home").rglob("*.safetensors"))


class Claimed(bytes):
    """Content that is said to be longer than it is."""

    size: int

    def __new__(cls, size):
        made = super().__new__(cls)
        made.size = size
        return made

    def __len__(self):
        return self.size


@pytest.mark.usefixtures("published")
def test_without_a_connection_the_copy_of_last_time_is_used_with_a_caution(run, monkeypatch, capsys):
    us3l.load(f"hf:{NAME}")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        point_at(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.warns(Caution, match="cannot be reached .*the copy that was fetched earlier is used"):
            assert us3l.load(f"hf:{NAME}").digest == run.network.digest
        assert main(["pick", "hf:anna/never", "--macs", "1e9"]) == 2
    assert "cannot be reached" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        us3l.load("hf:anna/never")


def test_a_fetch_that_was_cut_off_leaves_no_model_and_goes_on_next_time(published, run, monkeypatch, tmp_path):
    real, done = library.HfApi.hf_hub_download, []

    def cut(self, name, file, **settings):
        if len(done) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "home"))
        done.append(file)
        return real(self, name, file, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(library.HfApi, "hf_hub_download", cut)
        with pytest.raises(OSError, match="No space left"):
            us3l.load(f"hf:{NAME}")
    assert [path.suffix for path in kept(tmp_path)] == [".part"]
    published.asked.clear()
    assert us3l.load(f"hf:{NAME}").digest == run.network.digest
    assert not any(line.startswith("GET") and line.endswith(done[0]) for line in published.asked)  # it was there
    assert [path.suffix for path in kept(tmp_path)] == [""]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("{run} birds", "write USER/NAME"),
        ("{run} anna/other --private", "everybody can see it"),
        ("{empty} anna/new", "holds no model"),
        ("{run} anna/refused", "you may not publish anna/refused"),
        ("{run} anna/torn", "answers with error 503"),
    ],
)
def test_what_cannot_be_published_is_one_line_and_changes_nothing(
    hub, run, tmp_path, capsys, monkeypatch, arguments, line
):
    (tmp_path / "empty").mkdir()
    hub.put("anna/other", {})
    if "refused" in arguments:
        monkeypatch.setenv("HF_TOKEN", "hf_reader")
    if "torn" in arguments:
        hub.put("anna/torn", {})
        hub.fails["anna/torn/commit"] = 503
    assert main(["publish", *arguments.format(run=run.folder, empty=tmp_path / "empty").split()]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not any(hub.trees.values())


def test_a_model_that_nobody_could_use_is_not_published(hub, tmp_path):
    us3l.create("resnet18", stem="cifar", base=8).save(tmp_path / "model")
    with pytest.raises(UserError, match="not calibrated"):
        us3l.publish(tmp_path / "model", NAME)
    assert hub.asked == []


def test_the_command_says_where_it_is(hub, run, capsys):
    assert main(["publish", str(run.folder), NAME, "--private"]) == 0
    said = capsys.readouterr().out
    assert f"{hub.url}/{NAME}" in said.replace("\n", "")
    assert f"hf:{NAME}" in said


def test_without_the_package_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for module in [name for name in sys.modules if name.startswith("huggingface_hub.")]:
        monkeypatch.delitem(sys.modules, module)
    assert main(["pick", f"hf:{NAME}", "--macs", "1e9"]) == 2
    assert "needs the package huggingface_hub, which is missing: pip install 'us3l[hub]'" in capsys.readouterr().err
