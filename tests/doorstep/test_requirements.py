"""Versions are pinned in one file and, with hashes, in another; what is asked for is in both."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED_BY_MAKE = ("dev", "deploy", "detect", "lars", "serve")


def test_the_two_files_agree() -> None:
    constraints, hashed = pins("constraints.txt"), pins("requirements-hashed.txt")
    differing = {name: version for name, version in hashed.items() if constraints.get(name) != version}
    assert not differing, "run: make lock"
    assert asked_for() <= hashed.keys(), "run: make lock"


def test_every_pin_has_a_hash_and_no_file_the_address_of_packages() -> None:
    text = (ROOT / "requirements-hashed.txt").read_text()
    requirements = text.replace("\\\n", "").splitlines()
    assert all("--hash=sha256:" in line for line in requirements)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"].pop("urls")  # links for readers
    for content in ((ROOT / "constraints.txt").read_text(), text, str(settings)):
        assert "://" not in content


def pins(file: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def asked_for() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in INSTALLED_BY_MAKE for one in extras[extra])]
    return {canonical(re.split(r"[<>=!~\[; ]", one)[0]) for one in wanted}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
