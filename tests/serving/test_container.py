"""The Dockerfile, which nobody builds here: what it names must be there, and its steps must do their work."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

from us3l.commands.parse import parse
from us3l.commands.serve import Serve

ROOT = Path(__file__).parents[2]
container = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "container.py")))
TEXT = (ROOT / "Dockerfile").read_text()
STEPS = container.parse(TEXT)


def test_its_instructions_are_known_and_it_ends_without_rights():
    assert container.complaints(STEPS) == []
    names = [name for name, _ in STEPS]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert re.search(rf"useradd .*\b{dict(STEPS)['USER']}$", "\n".join(text for _, text in STEPS), re.MULTILINE)


def test_what_it_copies_is_there_and_not_left_out():
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = [word for name, text in STEPS if name == "COPY" for word in text.split()[:-1]]
    assert set(copied) == let_in
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"], "us3l", "constraints.txt", "pyproject.toml"} == let_in
    assert all((ROOT / name).exists() for name in copied)
    (extras,) = re.findall(r"'\.\[(.*)\]'", TEXT)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_the_command_that_it_runs_is_one_of_ours():
    program, command, *arguments = json.loads(dict(STEPS)["ENTRYPOINT"])
    assert (program, command) == ("us3l", "serve")
    given = parse(Serve, "serve", arguments)
    assert (str(given.run), given.host, given.port) == ("/model", "0.0.0.0", int(dict(STEPS)["EXPOSE"]))
    check = json.loads(dict(STEPS)["HEALTHCHECK"].partition("CMD ")[2])
    assert f":{given.port}/health" in check[-1]
    compile(check[-1], "healthcheck", "exec")
