import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def build():
    return runpy.run_path(str(DOCS / "build_api.py"))


def test_the_reference_is_up_to_date(build):
    assert (DOCS / "api.md").read_text(encoding="utf-8") == build["reference"](), "run: make docs"


def test_everything_in_it_is_described(build):
    for name, items in build["MODULES"].items():
        module = __import__(name, fromlist=["_"])
        for item in items:
            value = getattr(module, item)
            documented = value.__doc__ and not value.__doc__.startswith(f"{item}(")
            assert documented or list(build["fields_of"](value)), f"{name}.{item}"
