import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from us3l.run import Run
from us3l.run.config import read_plain
from us3l.run.linear_maps import load_probes
from us3l.run.training_log import read_history, read_records
from us3l.storage import load
from us3l.system.errors import UserError
from us3l.system.files import locked, read_json, replacing, write_json

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-2"


@pytest.fixture
def run(tmp_path):
    return Run(shutil.copytree(FIXTURE, tmp_path / "run"))


def test_paths_need_no_torch():
    code = "import sys; from us3l.run import Run; Run('x').metrics; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_finished_with_all_that_it_promises(run):
    description = read_json(run.model / "model.json")
    description["metadata"]["training"]["projector"] = "a" * 64
    write_json(run.model / "model.json", description)
    assert run.finished
    run.projector.unlink()  # kill -9 between the model and the projector
    assert not run.finished
    (run.model / "model.json").unlink()
    assert not run.finished


def test_what_is_not_there(tmp_path, run):
    with pytest.raises(UserError, match="there is no folder"):
        _ = Run(tmp_path / "none").network
    with pytest.raises(UserError, match="is not a run"):
        _ = Run(tmp_path).settings
    shutil.rmtree(run.model)
    with pytest.raises(UserError, match=r"is not finished: `us3l\.pretrain"):
        _ = run.network


def test_a_models_own_folder_serves_as_well(run):
    alone = Run(run.model)
    assert alone.model == run.model
    assert alone.network.widths == run.network.widths
    assert alone.weights == run.weights
    assert alone.evaluation_folder == run.model / "eval"


@pytest.mark.parametrize("name", ["eval", "profile", "detect", "export", "checkpoints"])
def test_folders_that_lead_out_are_refused(run, tmp_path, name):
    shutil.rmtree(run.folder / name)
    (run.folder / name).symlink_to(tmp_path)
    places = {"eval": "evaluation_folder", "profile": "profile_folder", "detect": "detection_folder"}
    with pytest.raises(UserError, match="leads out of"):
        getattr(run, places.get(name, {"export": "export_folder"}.get(name, name)))


@pytest.mark.parametrize("name", ["config.yaml", "train.log", "metrics.jsonl", "projector.safetensors", "model"])
def test_what_leads_out_is_not_read_either(run, tmp_path, name):
    (run.folder / name).rename(tmp_path / "elsewhere")
    (run.folder / name).symlink_to(tmp_path / "elsewhere")
    places = {"config.yaml": "config_file", "train.log": "log", "metrics.jsonl": "metrics"}
    with pytest.raises(UserError, match="leads out of"):
        getattr(run, places.get(name, name.split(".")[0]))


def test_a_folder_that_is_itself_a_link_is_fine(run, tmp_path):
    (tmp_path / "link").symlink_to(run.folder)
    assert Run(tmp_path / "link").evaluation_folder.is_dir()


def test_a_linked_lock_empties_nothing(run, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (run.folder / ".lock").symlink_to(victim)
    with pytest.raises(UserError, match=r"\.lock is a link"), locked(run.folder):
        pass
    (run.folder / ".lock").unlink()
    (run.folder / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match=r"\.lock is a link"), locked(run.folder):
        pass
    assert victim.read_text() == "mine"
    assert not (tmp_path / "new").exists()
    (run.folder / ".lock").unlink()
    os.mkfifo(run.folder / ".lock")
    with pytest.raises(UserError, match="not a regular file"), locked(run.folder):
        pass


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".{os.getpid()}.tmp.a.json").symlink_to(tmp_path / "victim")
    (tmp_path / "a.json").symlink_to(tmp_path / "victim")
    with replacing(tmp_path / "a.json") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "a.json").read_text() == "new"
    assert not (tmp_path / "a.json").is_symlink()


@contextmanager
def within(seconds):
    """An error, instead of a test that waits for ever."""

    def late(*_):
        raise TimeoutError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "name",
    [
        "train.log",
        "metrics.jsonl",
        "model/weights.safetensors",
        "model/statistics.safetensors",
        "eval/digits.probes.safetensors",
        "eval/digits.json",
        "config.yaml",
    ],
)
def test_pipes_and_devices_are_not_waited_for(run, kind, name):
    path = run.folder / name
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    readers = {
        "train.log": lambda: read_history(run),
        "metrics.jsonl": lambda: read_records(run),
        "eval/digits.probes.safetensors": lambda: load_probes(path),
        "eval/digits.json": lambda: run.evaluations,
        "config.yaml": lambda: read_plain(path),
    }
    with pytest.raises(UserError, match=r"not a regular file|leads out of"), within(20):
        readers.get(name, lambda: load(run.model))()


def test_a_full_disk_is_an_error_of_the_system_with_the_name_of_the_file(tmp_path):
    """In a process of its own, which may not write files of more than 10,000 bytes."""
    code = """
import resource, signal, sys, torch
from contextlib import contextmanager
from pathlib import Path
from us3l.storage import write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_tensors(Path(sys.argv[1]) / "x.safetensors", {"a": torch.zeros(2**16)})
except OSError as error:
    print(error.strerror, Path(error.filename).name)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout == "File too large x.safetensors\n"
    assert list(tmp_path.iterdir()) == []
