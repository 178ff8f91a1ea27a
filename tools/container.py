"""`python tools/container.py MODEL [--reuse]`: check the Dockerfile, and run its steps here, in a scratch folder.

This is for machines without a container engine. FROM becomes a new virtual environment, paths are those below the
scratch folder, and the user is not created, which would change this machine. With `--reuse`, packages that this
environment has are not downloaded again. MODEL is served as the container would; then come the health check, one
request, and the signal to stop.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}
START_SECONDS = 300
Steps = list[tuple[str, str]]


def parse(text: str) -> Steps:
    """The instructions of a Dockerfile, each with what it is given."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [(pair[0].upper(), pair[1] if len(pair) > 1 else "") for pair in pairs]


def complaints(steps: Steps) -> list[str]:
    """What is wrong with a Dockerfile, or unwise: the rules of the usual linters that concern ours."""
    found = [f"{name} is not an instruction that we use" for name, _ in steps if name not in KNOWN]
    names = [name for name, _ in steps]
    given = dict(steps)
    if names[:1] != ["FROM"]:
        found.append("the first instruction must be FROM")
    if not re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", given.get("FROM", "")):
        found.append("FROM must name a version")
    if given.get("USER", "root") in ("root", "0"):
        found.append("it must not end as root")
    for name in ("ENTRYPOINT", "HEALTHCHECK"):
        words = given.get(name, "").partition("CMD ")[2] if name == "HEALTHCHECK" else given.get(name, "")
        try:
            good = all(isinstance(word, str) for word in json.loads(words))
        except ValueError:
            good = False
        if not good:
            found.append(f"{name} must be a list in JSON: else a shell would keep signals from the program")
    for name, text in steps:
        if name == "WORKDIR" and not text.startswith("/"):
            found.append(f"WORKDIR {text} must be absolute")
        if name == "RUN" and "pip install" in text and not {"--no-cache-dir", "--constraint"} <= set(text.split()):
            found.append("pip must keep no cache, and take the pinned versions")
        if name == "RUN" and re.search(r"\bsudo\b|\bcurl\b.*\|", text):
            found.append(f"RUN {text} must neither use sudo nor run what it downloads")
    return found


def build(steps: Steps, scratch: Path, reuse: bool, pip: bool = True) -> dict[str, str]:
    """Run the steps; the environment in which the program is to run."""
    venv.create(scratch / "venv", with_pip=pip, symlinks=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP"))}
    environment["PATH"] = f"{scratch / 'venv' / 'bin'}{os.pathsep}{environment['PATH']}"
    if reuse:
        (packages,) = (scratch / "venv" / "lib").glob("python*/site-packages")
        (packages / "reused.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    folder = scratch
    for name, text in steps:
        print(f"{name} {text}", flush=True)
        if name == "WORKDIR":
            folder = scratch / text.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            environment |= dict(word.split("=", 1) for word in shlex.split(text))
        elif name == "COPY":
            *sources, target = text.split()
            for source in sources:
                place = folder / target / ("" if (ROOT / source).is_file() else ".")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, place)
        elif name == "RUN" and text.startswith("useradd"):
            print("  left out: it would change this machine")
        elif name == "RUN":
            subprocess.run(["sh", "-c", text], cwd=folder, env=environment, check=True)
    return environment


def serve(steps: Steps, model: Path, scratch: Path, environment: dict[str, str]) -> None:
    """What the container does from its start to its stop."""
    given = dict(steps)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = {"/model": str(model.resolve()), "0.0.0.0": "127.0.0.1", given["EXPOSE"]: port}
    command = [here.get(word, word) for word in json.loads(given["ENTRYPOINT"])]
    words = json.loads(given["HEALTHCHECK"].partition("CMD ")[2])
    check = [word.replace(f":{given['EXPOSE']}/", f":{port}/") for word in words]
    program = subprocess.Popen(command, cwd=scratch, env=environment)
    try:
        ready, end = f"http://127.0.0.1:{port}/ready", time.monotonic() + START_SECONDS
        while subprocess.run([sys.executable, "-c", f"import urllib.request as u; u.urlopen({ready!r})"],
                             stderr=subprocess.DEVNULL, check=False).returncode:  # fmt: skip
            if program.poll() is not None or time.monotonic() > end:
                raise SystemExit("the service does not start")
            time.sleep(0.5)
        subprocess.run(check, env=environment, check=True)
        print("health check: good;", urllib.request.urlopen(ready.replace("ready", "widths")).read(100), flush=True)
        program.send_signal(getattr(signal, given["STOPSIGNAL"]))
        code = program.wait(60)
    finally:
        program.kill()
    if code:
        raise SystemExit(f"it ended with code {code} when asked to stop")
    print("stopped: exit code 0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--reuse", action="store_true")
    options = parser.parse_args()
    steps = parse((ROOT / "Dockerfile").read_text())
    if wrong := complaints(steps):
        raise SystemExit("\n".join(wrong))
    print("Dockerfile: nothing to complain about", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        serve(steps, options.model, Path(folder), build(steps, Path(folder), options.reuse))


if __name__ == "__main__":
    main()
