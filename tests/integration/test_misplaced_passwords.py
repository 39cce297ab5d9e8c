"""A password that is typed into the wrong place is not printed: every option and argument of every command is tried."""

from collections.abc import Iterator
from functools import cache
from urllib.parse import quote

import pytest
import typer.main
from awa_cli.main import app
from typer.testing import CliRunner, Result

from tests.integration.test_fuzz_commands import leaf_commands

pytestmark = pytest.mark.integration

SECRET = "hush5hush"
COMMANDS = list(leaf_commands(excluded=()))
URL_OPTIONS = {"database_url", "direct_url"}
DATABASE_URLS = (
    f"postgresql://u:{SECRET}@h/d",
    f"postgres://u:{SECRET}@h:5432/d?sslmode=require",
    f"POSTGRESQL://u:{SECRET}@h/d",
    f" postgresql://u:{SECRET}@h/d",
    f"postgresql://u@h/d?password={SECRET}",
    f"postgresql://u@h/d?x=y&password={SECRET}&z=1",
    f"postgresql://u:a@{SECRET}@h/d",
    f"postgresql://u:a/{SECRET}?#@h/d",
    f"postgresql://u:a:{SECRET}'\"@h/d",
    f"postgresql://u:one {SECRET}@h/d",
    f"postgresql://:{quote('%/', safe='')}{SECRET}@h/d",
)
RUN_LONG = {"worker", "maintenance"}
NOT_STARTED = {"demo", "bench", "systemd"}  # run long without --check, or change the machine
OTHERS = (
    f"http://u:{SECRET}@h/d",
    f"mysql://u:{SECRET}@h/d",
    f"host=h password={SECRET} user=u",
    f"PGPASSWORD={SECRET}",
    f"a=postgresql://u:{SECRET}@h/d",
    f"a:postgresql://u:{SECRET}@h/d",
    f"[postgresql://u:{SECRET}@h/d",
)


def command_lines(text: str) -> Iterator[list[str]]:
    """Return command lines with the text in each place; required arguments before it are filled."""
    yield [text]
    yield [f"--{text}"]
    for path, command in COMMANDS:
        yield [*path, f"--{text}"]
        yield [*path[:-1], text]
        arguments: list[str] = []
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                yield [*path, *arguments, text]
                arguments.append("1")
        yield [*path, *arguments, text]
        for parameter in command.params:
            if parameter.param_type_name != "argument" and parameter.name not in URL_OPTIONS:
                for option in (*parameter.opts, *parameter.secondary_opts):
                    yield [*path, option, text, *arguments]
                    yield [*path, f"{option}={text}" if option.startswith("--") else f"{option}{text}", *arguments]


@pytest.fixture(autouse=True, scope="module")
def commands_are_built_once() -> Iterator[None]:
    """Save the 20 ms in which typer builds its commands, for each of the command lines."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("typer.testing._get_command", cache(typer.main.get_command))
        yield


def run(words: list[str], url: str) -> Result:
    return CliRunner().invoke(app, words, env={"AWA_DATABASE_URL": url}, input="", prog_name="awa")


@pytest.mark.parametrize("text", DATABASE_URLS)
def test_database_url_in_another_place_is_refused_without_its_password(text: str) -> None:
    for words in command_lines(text):
        result = run(words, "postgresql://nowhere.invalid/x")
        assert result.exit_code == 2, words
        assert SECRET not in result.output, words


@pytest.mark.parametrize("text", OTHERS)
def test_error_does_not_quote_a_password(database_url: str, text: str) -> None:
    refused = 0
    for words in command_lines(text):
        if words[0] in NOT_STARTED or any(word.startswith("--embedded") for word in words):
            continue
        check = ["--check"] if words[0] in RUN_LONG else []
        result = run([*words, *check], database_url)
        if result.exit_code:
            refused += 1
            assert SECRET not in result.stderr, words
    assert refused > len(COMMANDS)


def test_database_url_is_accepted_where_it_belongs(database_url: str) -> None:
    nowhere = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
    for words in (
        ["job", "list", "--database-url", database_url],
        ["--database-url", database_url, "job", "list"],
        ["job", "list", f"--database-url={database_url}"],
        ["enqueue", "backup", f'{{"url": "{nowhere}"}}'],
    ):
        assert run(words, database_url).exit_code == 0, words


def test_placeholder_in_the_help_is_kept() -> None:
    assert "postgresql://user:password@host" in run(["migrate", "--help"], "").output.replace("\n", "")
