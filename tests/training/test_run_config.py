"""Settings that were removed: a config.yaml of earlier versions opens, unless one of them is in use."""

from dataclasses import fields

import pytest

from us3l.objective.spec import Objective
from us3l.system.errors import UserError
from us3l.training.recipes import Recipe
from us3l.training.run_config import RETIRED, Machine, RunConfig, read_run_config

SECTIONS = {"machine": Machine, "recipe": Recipe, "objective": Objective}


def write(folder, section, name, value):
    path = folder / "config.yaml"
    indented = f"{section}: {{{name}: {value}}}"
    path.write_text(f"recipe: {{{indented}}}" if section == "objective" else indented)
    return path


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [(section, name, values[0]) for section, names in RETIRED.items() for name, values in names.items()],
)
def test_a_removed_setting_at_its_old_value_is_read_over(tmp_path, section, name, value):
    plain = {None: "null", False: "false"}.get(value, value)
    assert read_run_config(write(tmp_path, section, name, plain)) == RunConfig()
    assert name not in {field.name for field in fields(SECTIONS[section])}
    with pytest.raises(UserError, match=f"{name}='in use' was removed from us3l"):
        read_run_config(write(tmp_path, section, name, "in use"))


def test_only_settings_that_there_once_were_are_read_over(tmp_path):
    with pytest.raises(UserError, match="unknown setting 'fsdp'"):
        read_run_config(write(tmp_path, "objective", "fsdp", "false"))
