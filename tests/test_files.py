import os
import stat

import pytest

from us3l.errors import UserError
from us3l.files import read_json, replacing, write_json, write_text


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
