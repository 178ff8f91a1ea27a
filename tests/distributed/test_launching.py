"""What several processes do together, with a store as torch has it and threads in the place of processes."""

import itertools
import threading
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from us3l.distributed import launching
from us3l.distributed.launching import any_of, first_alone, processes
from us3l.system.errors import UserError


@pytest.fixture(autouse=True)
def one_store(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(launching.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(launching, "_turns", itertools.repeat(0))
    monkeypatch.setattr(launching, "POLL", 0.01)


def waits(errors: list[Exception]) -> threading.Thread:
    """One of the others, which has come to where it waits."""
    there = threading.Event()

    def wait():
        try:
            with first_alone(SimpleNamespace(world_size=2, is_global_zero=False)) as alone:
                assert not alone
                there.set()
        except UserError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert there.wait(60)
    return thread


def test_the_others_wait_for_the_first():
    errors = []
    other = waits(errors)
    with first_alone(SimpleNamespace(world_size=2, is_global_zero=True)) as alone:
        assert alone
        other.join(0.1)
        assert other.is_alive()
    other.join(60)
    assert not other.is_alive()
    assert not errors


def test_the_others_hear_of_a_failure():
    errors = []
    other = waits(errors)
    with pytest.raises(RuntimeError), first_alone(SimpleNamespace(world_size=2, is_global_zero=True)):
        raise RuntimeError
    other.join(60)
    assert "the first process of the run has ended" in str(errors[0])


def test_torchrun_decides_how_many_there_are(monkeypatch):
    assert processes(3) == (3, 1)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert processes(3) == (4, 2)


def test_several_processes_stop_when_any_of_them_was_asked_to():
    several = SimpleNamespace(world_size=2, device="cpu", all_reduce=lambda mine, **_: mine + 1)
    assert any_of(several, False)
    assert not any_of(SimpleNamespace(world_size=1), False)
