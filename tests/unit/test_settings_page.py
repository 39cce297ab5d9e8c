"""docs/settings.md says what the code says."""

from dataclasses import fields
from datetime import timedelta
from pathlib import Path

from awa_py import duration
from awa_py.config import Settings, variable

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def rows() -> list[str]:
    defaults = Settings()
    lines = []
    for setting in fields(Settings):
        value = getattr(defaults, setting.name)
        shown = duration.text(value) if isinstance(value, timedelta) else str(value)
        lines.append(f"| `{variable(setting.name)}` | {shown} | {setting.metadata['says']} |")
    return lines


def test_every_setting_is_on_the_page_with_its_default() -> None:
    page = PAGE.read_text().splitlines()
    assert [line for line in page if line.startswith("| `AWA_") and line in rows()] == rows()
