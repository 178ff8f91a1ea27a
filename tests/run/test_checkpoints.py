import errno
import os
import time

import pytest
import torch

from us3l.run.checkpoints import load_checkpoint, save_checkpoint
from us3l.system.errors import UserError


def test_a_disk_without_hard_links_keeps_two_checkpoints(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, {"step": step})
        assert load_checkpoint(tmp_path)[0]["step"] == step
    (tmp_path / "last.pt").unlink()
    assert load_checkpoint(tmp_path)[0]["step"] == 2
    assert sorted(os.listdir(tmp_path)) == ["previous.pt"]


def test_a_tensor_that_repeats_what_it_holds_is_refused(tmp_path):
    huge = torch.zeros(1).expand(2**40)
    save_checkpoint(tmp_path, {"step": 1, "optimiser": {"state": [{"momentum": huge}]}})
    assert (tmp_path / "last.pt").stat().st_size < 10_000
    with pytest.raises(UserError, match="has fewer values than that"):
        load_checkpoint(tmp_path)


def test_lists_that_hold_each_other_again_and_again_are_refused(tmp_path):
    many: list[object] = [0]
    for _ in range(30):
        many = [many] * 10
    endless: list[object] = []
    endless.append(endless)
    for value in (many, endless):
        save_checkpoint(tmp_path, {"step": 1, "optimiser": {"param_groups": value}})
        assert (tmp_path / "last.pt").stat().st_size < 10_000
        began = time.process_time()
        with pytest.raises(UserError, match="has more than 1,000,000 values"):
            load_checkpoint(tmp_path)
        assert time.process_time() - began < 20


def test_views_of_a_whole_tensor_are_not(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    save_checkpoint(tmp_path, {"step": 1, "part": whole.T, "row": whole[1], "empty": torch.zeros(0)})
    state, _ = load_checkpoint(tmp_path)
    assert torch.equal(state["part"], whole.T)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "last.pt")
    with pytest.raises(UserError, match="not a regular file"):
        load_checkpoint(tmp_path)
