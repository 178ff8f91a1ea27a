import os
import stat
import subprocess
import sys

import pytest

from us3l.system.errors import UserError
from us3l.system.files import Taken, check_name, is_inside, locked, read_json, replacing, write_json, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_new_files_have_the_users_mode_whatever_wrote_them(tmp_path):
    with replacing(tmp_path / "file") as temporary:
        temporary.touch(mode=0o600)
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_json(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"b": 1})
    assert read_json(tmp_path / "deep" / "a.json") == {"b": 1}
    for text in ("[1]", "{", "\x00"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"cannot read .*bad\.json"):
            read_json(tmp_path / "bad.json")


def test_a_folder_is_kept_by_one_process_at_a_time_and_free_once_it_ends_or_is_killed(tmp_path):
    folder = tmp_path / "run"
    code = "import sys, time\nfrom pathlib import Path\nfrom us3l.system.files import locked\n"
    code += f"with locked(Path({str(folder)!r})):\n    print('in', flush=True)\n    time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "in\n"
        with pytest.raises(Taken, match=f"in use by process {other.pid}"), locked(folder):
            pass
        other.kill()
    for _ in range(2):
        with locked(folder):
            pass


@pytest.mark.parametrize("name", ["~nobody-of-this-name/photos", "x" * 5000, "a\0b", "~/" + "x" * 300])
def test_names_that_no_path_can_have_are_refused_in_one_line(name):
    """They come from settings and results of others, and ended in tracebacks."""
    from us3l.data.datasets import is_there
    from us3l.data.sources import load
    from us3l.detection.scenes import load as load_scenes
    from us3l.run.identity import data_path, data_source, source_of

    assert not is_there(name)
    assert (data_path(name), data_source("digits", name)) == ("", "digits")
    assert isinstance(source_of(name), str)
    for reader in (load, load_scenes):
        with pytest.raises(UserError, match="no such"):
            reader(name)


def test_a_link_that_leads_to_itself_stays_inside(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "out").symlink_to("/")
    assert is_inside(tmp_path, tmp_path / "loop")
    assert not is_inside(tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="loop"):
        read_json(tmp_path / "loop")


def test_names_that_are_not_utf_8(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    write_text(tmp_path / "card.md", f"trained on {name}")
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == "trained on caf\\udce9"
    check_name(tmp_path)
    with pytest.raises(UserError, match=r"not UTF-8.*choose another `out`"):
        check_name(tmp_path / name)
