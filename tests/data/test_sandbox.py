"""Files that would take this process along end a child instead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from us3l.data import sandbox
from us3l.data.decode import Damaged, decode
from us3l.data.sources import load
from us3l.system.errors import UserError


@pytest.fixture(autouse=True)
def sandboxed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(sandbox.VARIABLE, "1")
    yield
    while free():
        free().pop().close()


def free() -> list[sandbox.Child]:
    return sandbox._free[os.getpid()]


def png(width: int = 24, height: int = 16, mode: str = "RGB") -> bytes:
    file = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_pixels_are_the_same(size: int | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = png(mode=mode)
    (tmp_path / "ä b.png").write_bytes(content)
    inside = decode(content, size), decode(tmp_path / "ä b.png", size)
    (child,) = free()
    monkeypatch.setenv(sandbox.VARIABLE, "0")
    assert all(np.array_equal(one, decode(content, size)) for one in inside)
    assert all(one.flags.writeable for one in inside)
    assert child.process.poll() is None


def test_a_damaged_image_is_one_and_the_child_goes_on() -> None:
    with pytest.raises(Damaged, match="not an image"):
        decode(b"nothing", None)
    (child,) = free()
    assert decode(png(), None).shape == (16, 24, 3)
    assert free() == [child]


def test_a_child_that_dies_is_a_damaged_image_and_another_follows() -> None:
    decode(png(), None)
    (child,) = free()
    os.kill(child.process.pid, signal.SIGKILL)
    with pytest.raises(Damaged, match="ended with code -9"):
        decode(png(), None)
    assert decode(png(), 8).shape == (8, 8, 3)
    assert free() != [child]


def child_with(change: str) -> sandbox.Child:
    """One whose code is changed before it begins."""
    child = sandbox.Child.__new__(sandbox.Child)
    code = (
        f"import sys, time; from us3l.data import sandbox\n{change}\nsandbox.main(sys.stdin.buffer, sys.stdout.buffer)"
    )
    child.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.process.stdin
    assert child.process.stdout
    child.requests, child.replies = child.process.stdin, child.process.stdout
    assert child.replies.read(1) == sandbox.READY
    return child


def test_a_child_that_stalls_is_ended() -> None:
    free().append(child_with("sandbox.SECONDS = 0.2; sandbox.decode_here = lambda *_: time.sleep(60)"))
    with pytest.raises(Damaged, match="decoding takes more than 20 s"):
        decode(png(), None)


def test_memory_is_limited() -> None:
    """Within the bounds of an image, but not within those of this child."""
    file = BytesIO()
    Image.new("L", (6000, 6000)).save(file, "PNG", compress_level=1)
    free().append(child_with("sandbox.MEMORY = 2**26 + int(open('/proc/self/statm').read().split()[0]) * 4096"))
    with pytest.raises(Damaged, match=r"decoding takes more than .* GiB"):
        decode(file.getvalue(), None)


@pytest.mark.slow
def test_the_largest_image_fits() -> None:
    file = BytesIO()
    Image.new("RGBA", (8192, 8192), (9, 9, 9, 0)).save(file, "PNG", compress_level=1)
    assert decode(file.getvalue(), 64).tolist() == np.full((64, 64, 3), 255).tolist()


def test_a_forked_process_has_children_of_its_own() -> None:
    decode(png(), None)
    pid = os.fork()
    if pid == 0:
        mine = free()
        os._exit(0 if not mine and decode(png(), 8).shape == (8, 8, 3) and len(free()) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert decode(png(), None).shape == (16, 24, 3)


def test_a_folder_is_read_through_it(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png() if number else b"broken")
    images = load(tmp_path, "all", size=8)
    assert len(images) == 2
    assert free()
    assert "not an image" in images.skipped[0]


def test_it_does_not_import_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "us3l").mkdir()
    (tmp_path / "us3l/__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert decode(png(), None).shape == (16, 24, 3)


def test_other_values_and_a_child_that_does_not_start_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(UserError, match="does not start"):
        decode(png(), None)
    monkeypatch.setenv(sandbox.VARIABLE, "yes")
    with pytest.raises(UserError, match="must be 1"):
        decode(png(), None)
