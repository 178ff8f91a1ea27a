"""A bundle on an ARM64 processor, which QEMU emulates: does it give the outputs of this machine?

    python -m reliability.arm64 BUNDLE [--work FOLDER] [--processor cortex-a72]

It needs Debian or one of its relatives (apt-get, dpkg), but not root: packages are unpacked into the work folder, which
is used again the next time, and installed nowhere. These are QEMU, a Python for ARM64, and the wheels of numpy, Pillow
and onnxruntime for it, at the versions of constraints.txt. The bundle's own benchmark.py runs there and checks its
networks; then each ONNX file computes the same images here and there. Emulated times say nothing about a device.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from us3l.deploy.benchmark import MIN_COSINE, TOLERANCE
from us3l.deploy.proof import difference

ROOT = Path(__file__).parents[1]
PACKAGES = ["python3", "libstdc++6"]
WHEELS = ["numpy", "pillow", "onnxruntime"]
PLATFORMS = [f"manylinux{version}_aarch64" for version in ("2014", "_2_27", "_2_28")]
APT = """
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
Acquire::Languages "none";
Dir::State "{folder}/state";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
"""
# ONNX Runtime looks at files of the kernel, and dies where they describe an x86 processor.
KERNEL = {
    "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n"
    "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\n",
    "sys/devices/system/cpu/possible": "0\n",
    "sys/devices/system/cpu/present": "0\n",
}
COMPUTE = """
import sys
import numpy as np
folder, out, *names = sys.argv[1:]
sys.path.insert(0, folder)
from pathlib import Path
from example import OPENERS
found = {}
for name in names:
    about, run = OPENERS[".onnx"](Path(folder, name))
    size = about["preprocessing"]["size"]
    images = np.random.default_rng(0).normal(size=(7, 3, size, size)).astype(np.float32)
    found[name] = np.concatenate([run(images), run(images[:1])])
np.savez(out, **found)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "arm64")
    parser.add_argument("--processor", default="cortex-a72", help="one that QEMU knows")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    emulated = emulator(work, options.processor)
    say(f"emulated: {options.processor}, Python {run([*emulated, '-c', 'import sys; print(sys.version)']).split()[0]}")
    install_wheels(work, emulated)
    shutil.rmtree(work / "bundle", ignore_errors=True)
    folder = Path(shutil.copytree(options.bundle, work / "bundle"))
    print(run([*emulated, folder / "benchmark.py", "--seconds", "0", "--out", work / "latencies.csv"]), end="")
    return compare(folder, work, emulated)


def emulator(work: Path, processor: str) -> list[str | Path]:
    """The command that runs ARM64's Python."""
    root = work / "root"
    if not (root / "usr/bin/python3").exists():
        say("getting Python for ARM64 from Debian's packages")
        configuration = work / "apt.conf"
        configuration.write_text(APT.format(folder=work / "apt"))
        for name in ("state/lists/partial", "cache/archives/partial"):
            (work / "apt" / name).mkdir(parents=True, exist_ok=True)
        (work / "apt/state/status").touch()
        environment = {"APT_CONFIG": str(configuration)}
        run(["apt-get", "update", "-q"], environment=environment)
        download = ["apt-get", "install", "-q", "-y", "--download-only", "--no-install-recommends", *PACKAGES]
        run(download, environment=environment)
        for package in sorted((work / "apt/cache/archives").glob("*.deb")):
            run(["dpkg", "-x", package, root])
        if not (root / "lib").exists():  # where Debian has merged it into usr/
            (root / "lib").symlink_to("usr/lib")
    for name, content in KERNEL.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    qemu: str | Path | None = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        qemu = work / "qemu/usr/bin/qemu-aarch64-static"
        if not qemu.exists():
            say("getting QEMU from Debian's packages")
            run(["apt-get", "download", "-q", "qemu-user-static"], folder=work)
            run(["dpkg", "-x", next(work.glob("qemu-user-static*.deb")), work / "qemu"])
    return [qemu, "-cpu", processor, "-L", root, root / "usr/bin/python3"]


def install_wheels(work: Path, emulated: list[str | Path]) -> None:
    version = run([*emulated, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    if (work / "wheels/onnxruntime").exists():
        return
    say("getting wheels for ARM64")
    chosen = [flag for name in PLATFORMS for flag in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", "--implementation", "cp", *chosen]
    run([*command, "--python-version", version, "--target", work / "wheels", "-c", ROOT / "constraints.txt", *WHEELS])


def compare(folder: Path, work: Path, emulated: list[str | Path]) -> int:
    """The outputs of every ONNX file for the same images, here and there."""
    names = sorted(path.name for path in folder.glob("*.onnx"))
    outputs = []
    for machine, python in ((platform.machine(), [sys.executable]), ("aarch64", emulated)):
        out = work / f"{machine}.npz"
        run([*python, "-c", COMPUTE, folder, out, *names])
        outputs.append(np.load(out))
    here, there = outputs
    wrong = 0
    for name in names:
        apart = difference(there[name], here[name])
        norms = np.linalg.norm(here[name], axis=1) * np.linalg.norm(there[name], axis=1)
        cosine = float(((here[name] * there[name]).sum(1) / norms).min())
        good = cosine >= MIN_COSINE if "-int8" in name else apart <= TOLERANCE
        wrong += not good
        say(f"{name}: differs by {apart:.1e}, smallest cosine {cosine:.6f}: {'good' if good else 'WRONG'}")
    return 1 if wrong else 0


def run(command: Sequence[str | Path], folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """What a command prints; one that fails ends all."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"} | (environment or {})
    settings.pop("PYTHONPATH", None)
    if "-L" in command:
        settings["PYTHONPATH"] = str(Path(command[command.index("-L") + 1]).parent / "wheels")
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{Path(command[0]).name} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
