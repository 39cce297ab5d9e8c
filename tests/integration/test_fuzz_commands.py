"""Whatever is typed after `awa`: an answer or one sentence, never a traceback."""

from collections.abc import Collection, Iterator
from typing import Any

import pytest
import typer
from awa_cli.main import app
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.fuzz import cases

pytestmark = pytest.mark.integration

# These run until they are stopped, change the machine, or open a server of their own.
EXCLUDED_COMMANDS = {"worker", "maintenance", "demo", "bench", "systemd", "health"}
EXCLUDED_OPTIONS = {"database_url", "direct_url", "embedded", "embedded_dir", "watch", "follow", "help", "log_format"}

ODD_TEXTS = (
    "", " ", "-", "--", "-1", "0", "1", "2", "4", "25", "9223372036854775807", "9223372036854775808", "-9e999", "nan",
    "1e400", "٣", "1_000", "true", "null", "[]", "{}", '{"n": 1}', '{"n": 1e999}', '{"a": "\\u0000"}', "[" * 5_000,
    '{"a":' * 3_000, "{", '"', "'", ";", "%s", "$1", "{0}", "../../etc/passwd", "a" * 300, "ß", "😀", "\u202eevil",
    "\x07", "\x1b[31m", "a\nb", "\ud800", "default", "email", "work", "digest", "work:*", "*", "**", "0 9 * * *",
    "* * * * * *", "0 0 30 2 *", "@daily", "R * * * *", "UTC", "Europe/Berlin", "Mars/Phobos", "30s", "10m", "1h30m",
    "999999999d", "1e9d", "-5s", "infinity", "2026-01-01", "2026-01-01T00:00:00Z", "0000-00-00", "99999-01-01",
    "tomorrow", "10/s", "0/s", "10/0s", "1/999999999d", "postgresql://u:secret@h/d", "a=b", "=", "key=1",
)  # fmt: skip

TEXTS = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=20), st.integers().map(str))


def leaf_commands(excluded: Collection[str] = EXCLUDED_COMMANDS) -> Iterator[tuple[list[str], Any]]:
    """Return the words and the command of each command that has no subcommands."""

    def walk(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        for name, child in getattr(command, "commands", {}).items():
            if path or name not in excluded:
                yield from walk([*path, name], child)
        if not hasattr(command, "commands"):
            yield path, command

    yield from walk([], typer.main.get_command(app))


COMMANDS = list(leaf_commands())


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    path, command = draw(st.sampled_from(COMMANDS))
    words = [*path]
    for parameter in command.params:
        if parameter.name in EXCLUDED_OPTIONS or (not parameter.required and draw(st.integers(0, 3)) > 0):
            continue
        repetitions = draw(st.integers(1, 3)) if parameter.multiple or parameter.nargs == -1 else 1
        for _ in range(repetitions):
            if parameter.param_type_name == "argument":
                words.append(draw(TEXTS))
            elif getattr(parameter, "is_flag", False):
                words.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
            else:
                words += [parameter.opts[0], draw(TEXTS)]
    return words


@cases(600)
@given(words=command_lines())
def test_no_command_line_ends_in_a_traceback(database_url: str, words: list[str]) -> None:
    result = CliRunner().invoke(app, words, env={"AWA_DATABASE_URL": database_url}, input="", prog_name="awa")
    assert isinstance(result.exception, SystemExit | None), (words, result.exception)
    assert result.exit_code in (0, 1, 2), words
    assert "Traceback" not in result.output, words
    if result.exit_code:
        assert result.output.strip(), words
