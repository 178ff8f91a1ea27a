"""The Dockerfile, which nobody builds here: what it names must be there, and its steps must do their work."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

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


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("FROM python:3.11-slim", "FROM python", "FROM must name a version"),
        ("FROM python:3.11-slim", "FROM python:latest", "FROM must name a version"),
        ("USER us3l\n", "", "it must not end as root"),
        ("--no-cache-dir ", "", "pip must keep no cache"),
        ("WORKDIR /opt", "WORKDIR opt", "WORKDIR opt/us3l must be absolute"),
        ('ENTRYPOINT ["us3l", "serve", "/model"', "ENTRYPOINT us3l serve /model", "ENTRYPOINT must be a list in JSON"),
        ("EXPOSE 8000", "EXPSOE 8000", "EXPSOE is not an instruction"),
    ],
)
def test_mistakes_in_it_would_be_told(old, new, reason):
    assert old in TEXT
    found = container.complaints(container.parse(TEXT.replace(old, new, 1)))
    assert any(text.startswith(reason) for text in found), found


def test_its_steps_are_run_in_order_below_one_folder(tmp_path):
    steps = container.parse("FROM x:1\nRUN useradd us3l\nWORKDIR /opt/a\nCOPY LICENSE ./\nCOPY tools ./tools\n"
                            "ENV GREETING=hello\nRUN echo $GREETING > said && which python > where\n")  # fmt: skip
    environment = container.build(steps, tmp_path, reuse=False, pip=False)
    assert environment["GREETING"] == "hello"
    assert (tmp_path / "opt/a/LICENSE").is_file()
    assert (tmp_path / "opt/a/tools/container.py").is_file()
    assert (tmp_path / "opt/a/said").read_text() == "hello\n"
    assert (tmp_path / "opt/a/where").read_text().strip() == str(tmp_path / "venv/bin/python")
