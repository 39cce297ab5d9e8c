"""docs/settings.md lists the settings and variables of the code."""

import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from awa_cli.main import app
from awa_cli.worker import QUEUES_VARIABLE

from awa_py import durations
from awa_py.settings import Settings, variable

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def rows() -> list[str]:
    defaults = Settings()
    lines = []
    for setting in fields(Settings):
        value = getattr(defaults, setting.name)
        shown = durations.text(value) if isinstance(value, timedelta) else str(value)
        lines.append(f"| `{variable(setting.name)}` | {shown} | {setting.metadata['description']} |")
    return lines


def test_every_setting_is_documented_with_its_default() -> None:
    page = PAGE.read_text().splitlines()
    assert [line for line in page if line.startswith("| `AWA_") and line in rows()] == rows()


def variables(command: Any) -> Iterator[str]:
    for parameter in command.params:
        found = parameter.envvar or ()
        yield from (found,) if isinstance(found, str) else found
    for name, inner in getattr(command, "commands", {}).items():
        if name not in ("bench", "demo"):
            yield from variables(inner)


def test_exactly_the_variables_of_the_command_line_are_documented() -> None:
    of_options = {*variables(typer.main.get_command(app)), QUEUES_VARIABLE}
    of_settings = {variable(setting.name) for setting in fields(Settings)}
    without_an_option = {"AWA_ENV_FILE", "AWA_PG_BIN"}
    table_rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {name for line in table_rows for name in re.findall(r"`([A-Z_]+)`", line)}
    assert named == of_options | of_settings | without_an_option
