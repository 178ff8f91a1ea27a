"""Nothing is sent and no id is kept: commands in a process that sees every connection."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import us3l
from tests.shapes import write_voc

WATCHED = """
import socket, sys

def refuse(*given, **named):
    print("CONNECTION", given, file=sys.stderr, flush=True)
    raise OSError("no network here")

class Socket(socket.socket):
    connect_ex = sendto = refuse

    def connect(self, address):
        # The processes of this machine that read images talk to each other.
        super().connect(address) if self.family == socket.AF_UNIX else refuse(address)

socket.socket = Socket
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
from us3l.commands.main import main

for arguments in sys.argv[1:]:
    assert main(arguments.split()) == 0, arguments
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), widths=[0.5])
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    folder = tmp_path_factory.mktemp("run")
    net.save(folder / "model")
    return folder


@pytest.mark.slow
def test_commands_send_nothing_and_keep_no_id(run, tmp_path):
    pytest.importorskip("nncf", reason="needs us3l[deploy]")
    pytest.importorskip("onnxruntime", reason="needs us3l[deploy]")
    home, caches, trace = tmp_path / "home", tmp_path / "caches", tmp_path / "trace"
    home.mkdir()
    new, boxes = tmp_path / "new", write_voc(tmp_path / "boxes", trainval=2, test=1)
    commands = [
        f"pretrain digits --out {new} --accelerator cpu --base 8 --size 8 --batch-size 16 --images 32 --epochs 1 "
        "--hidden 16 --predictor 16 --dim 8",
        f"evaluate {new} --widths 1 --train-images 40 --test-images 30 --no-floor",
        f"report {new}",
        f"pick {new} --macs 1e9",
        f"compare {new} --out {new}/table.png",
        f"detect {new} --data {boxes} --width 1 --steps 1 --batch 2 --image-size 24 --channels 8 --regions 16 "
        "--device cpu",
        "recipes",
        "backbones --size 32 --stem cifar --widths 0.5",
        f"embed {new} {boxes} --width 0.5 --out {new}/all.parquet",
        f"find {new}/all.parquet",
        f"predict {new} {boxes} --width 1 --out {new}/classes.csv",
        f"export {run} --width 0.5 --data digits --format onnx openvino --int8",
        f"profile {run} --widths 0.5 --repeats 1 --threads 1 --backends onnx openvino",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "CI")
        and not name.startswith("PYTEST")
    }
    environment |= {"HOME": str(home), "MPLCONFIGDIR": str(caches), "TMPDIR": str(tmp_path)}
    tracer = shutil.which("strace")  # native code does not go through Python's sockets
    watcher = (
        [tracer, "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg", "-o", trace] if tracer else []
    )
    command = [*watcher, sys.executable, "-c", WATCHED, *commands]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "CONNECTION" not in done.stderr, done.stderr
    assert not list(home.rglob("*")), "something was written into the home folder"
    if tracer and trace.exists():
        assert "AF_INET" not in trace.read_text()


def test_only_the_quiet_module_imports_libraries_that_report():
    package = Path(us3l.__file__).parent
    for path in package.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        direct = [line.strip() for line in lines if line.strip().split(" ")[:1] in (["import"], ["from"])]
        reporting = [line for line in direct if line.split()[1].split(".")[0] in ("onnxruntime", "openvino", "nncf")]
        allowed = {"from nncf import IgnoredScope"}  # a type
        assert path.name == "example.py" or set(reporting) <= allowed, path
