"""A bundle's manifest: what is written is read, and nothing else is believed."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from us3l.data.preprocessing import Preprocessing
from us3l.run.bundles import Bundle, Entry, read_bundle, write_bundle
from us3l.system.errors import UserError
from us3l.system.files import checksum

PREPROCESSING = {"size": 16, "resize": 16, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}


@pytest.fixture
def written(tmp_path):
    entries = []
    for width, accuracy in ((0.5, None), (1.0, {"data": "digits", "linear": 90.0, "knn": None})):
        path = tmp_path / f"net-{width}x.onnx"
        path.write_bytes(b"weights" * 9)
        costs = {"params": 10, "macs": 20, "bytes": 63, "features": 2}
        files = {path.name: checksum(path)}
        entries.append(
            Entry(width, "onnx", False, files, **costs, accuracy=accuracy, classes=["cat", "dog"], head="probe-pets")
        )
    bundle = Bundle(tmp_path, "resnet18", Preprocessing.from_plain(PREPROCESSING), entries)
    write_bundle(bundle)
    return bundle


def test_what_is_written_is_read(written):
    assert read_bundle(written.folder) == written
    assert written.path(written.entries[0]).name == "net-0.5x.onnx"
    assert {"us3l", "torch"} <= json.loads((written.folder / "manifest.json").read_text()).keys()


def test_files_must_be_those_that_were_exported(written):
    path = written.path(written.entries[1])
    path.write_bytes(b"others!" * 9)
    with pytest.raises(UserError, match="checksum differs"):
        read_bundle(written.folder)
    path.unlink()
    with pytest.raises(UserError, match=r"net-1.0x.onnx is missing"):
        read_bundle(written.folder)
    assert read_bundle(written.folder, check=False) == written


def test_a_folder_without_a_manifest(tmp_path):
    with pytest.raises(UserError, match="us3l export"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 0}, "width"),
        ({"width": float("nan")}, "width"),
        ({"format": "pickle"}, "format"),
        ({"int8": 1}, "int8"),
        ({"files": {}}, "files"),
        ({"files": {"../net.onnx": "0" * 64}}, "name"),
        ({"files": {"/etc/passwd": "0" * 64}}, "name"),
        ({"files": {".hidden/net.onnx": "0" * 64}}, "name"),
        ({"files": {"sub\\net.onnx": "0" * 64}}, "name"),
        ({"files": {"n" * 300: "0" * 64}}, "name"),
        ({"files": {"net.onnx": "12"}}, "files"),
        ({"params": True}, "params"),
        ({"macs": 1.5}, "macs"),
        ({"bytes": -1}, "bytes"),
        ({"accuracy": {"linear": 90.0}}, "accuracy"),
        ({"accuracy": {"data": "digits", "linear": 101}}, "accuracy"),
        ({"accuracy": {"data": "digits", "finetuned": 1e9}}, "accuracy"),
        ({"classes": ["cat"]}, "classes"),
        ({"classes": [1, 2]}, "classes"),
        ({"head": None}, "head"),
        ({"head": "../up"}, "head"),
        ({"weights": "12"}, "weights"),
        ({"reference": 3}, "reference"),
        ({"reference": "AACAPwAAIMA"}, "reference"),  # not base64
        ({"reference": "AACAPw=="}, "reference"),  # one number, for two outputs
        ({"reference": "AACAPwAAwH8="}, "reference"),  # NaN
    ],
)
def test_a_damaged_entry_is_named(written, change, said):
    rewrite(written, entries=[asdict(written.entries[0]) | change])
    with pytest.raises(UserError, match=f"damaged: .*{said}"):
        read_bundle(written.folder, check=False)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 5},
        {"others": []},
        {"others": {"example.py": "12"}},
        {"name": None},
        {"entries": None},
        {"entries": [3]},
        {"preprocessing": None},
        {"preprocessing": PREPROCESSING | {"size": 0}},
        {"preprocessing": PREPROCESSING | {"std": [0, 1, 1]}},
        {"preprocessing": PREPROCESSING | {"mean": [0, 1]}},
    ],
)
def test_a_damaged_manifest(written, change):
    rewrite(written, **change)
    with pytest.raises(UserError, match=r"manifest\.json"):
        read_bundle(written.folder, check=False)


def test_a_network_is_there_once(written):
    twice = [written.entries[0], replace(written.entries[0], files={"other.onnx": "0" * 64})]
    write_bundle(replace(written, entries=twice))
    with pytest.raises(UserError, match="twice"):
        read_bundle(written.folder, check=False)


def test_fields_that_are_not_known_are_ignored_and_later_ones_may_be_missing(written):
    rows = [asdict(entry) | {"more": 1} for entry in written.entries]
    for row in rows:
        del row["reference"]
    rewrite(written, entries=rows, more={})
    assert read_bundle(written.folder) == replace(
        written, entries=[replace(entry, reference=None) for entry in written.entries]
    )


def test_processes_add_their_entries_at_once(tmp_path):
    script = """if True:
        import sys
        from pathlib import Path
        from us3l.data.preprocessing import Preprocessing
        from us3l.run.bundles import Bundle, Entry, add_entry

        sys.stdin.readline()
        entry = Entry(int(sys.argv[1]) / 8, "onnx", False, {f"net-{sys.argv[1]}.onnx": "0" * 64}, 1, 1, 1, 1)
        add_entry(Bundle(Path("."), "net", Preprocessing.usual(8), [entry]))
    """
    commands = [[sys.executable, "-c", script, str(number)] for number in range(1, 9)]
    waiting = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=tmp_path) for command in commands]
    for process in waiting:
        process.communicate("go\n", timeout=300)
    assert [process.returncode for process in waiting] == [0] * 8
    assert len(read_bundle(tmp_path, check=False).entries) == 8


def rewrite(bundle, **changes):
    manifest = bundle.folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
