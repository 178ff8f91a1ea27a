import os
import platform
import subprocess
import sys

import psutil
import pytest
import torch
from torch import nn

from us3l.system.devices import (
    available_memory,
    choose_device,
    for_doubles,
    moved,
    precision_for,
    precision_here,
    usable_cores,
)
from us3l.system.errors import UserError


@pytest.fixture
def machine(monkeypatch):
    def with_devices(cuda: bool, mps: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return with_devices


@pytest.mark.parametrize(
    ("cuda", "mps", "best"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")]
)
def test_the_best_device_there_is(machine, cuda, mps, best):
    machine(cuda, mps)
    assert choose_device().type == best
    assert choose_device("cpu").type == "cpu"


def test_a_device_that_is_missing(machine):
    machine(cuda=False, mps=False)
    for asked in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"device='{asked}' is not available here; choose from auto, cpu"):
            choose_device(asked)


def test_doubles_leave_mps():
    assert for_doubles(torch.device("mps")) == torch.device("cpu")
    assert for_doubles(torch.device("cuda")) == torch.device("cuda")


def test_a_module_comes_back():
    module = nn.Linear(2, 2)
    try:
        with moved(module, torch.device("meta")):
            assert module.weight.is_meta
            module.to_empty(device="cpu")
            raise KeyError
    except KeyError:
        assert module.weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("kind", "capability", "expected"),
    [
        ("cuda", (9, 0), "bf16-mixed"),
        ("cuda", (8, 0), "bf16-mixed"),
        ("cuda", (7, 5), "16-mixed"),
        ("cuda", (7, 0), "16-mixed"),
        ("cuda", (6, 1), "32-true"),
        ("cuda", None, "32-true"),
        ("mps", None, "32-true"),
        ("cpu", None, "32-true"),
    ],
)
def test_precision_that_suits_a_device(kind, capability, expected):
    assert precision_for(kind, capability) == expected


def test_precision_of_the_device_that_is_chosen(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    machine(cuda=True, mps=False)
    assert (precision_here(), precision_here("cpu")) == ("bf16-mixed", "32-true")
    machine(cuda=False, mps=False)
    assert (precision_here(), precision_here("cuda")) == ("32-true", "32-true")


def test_cores_and_memory_are_those_that_a_process_may_use(monkeypatch):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, cores)
    assert usable_cores() == len(cores)
    monkeypatch.delattr(psutil.Process, "cpu_affinity")  # as on a Mac
    assert usable_cores() == os.cpu_count()
    assert 0 < available_memory() < psutil.virtual_memory().total


PAGES_OF_TEN_TENSORS = """
import resource, sys, torch
from us3l.system.devices import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
counts = []
for _ in range(30):
    torch.ones(10_000_000)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[-11])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_memory_of_freed_tensors_is_used_again():
    def pages(*arguments: str) -> int:
        command = [sys.executable, "-c", PAGES_OF_TEN_TENSORS, *arguments]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert pages("keep") < 10 < pages() / 10
