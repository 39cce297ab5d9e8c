"""Parse values of the command line. An invalid value is a usage error, exit code 2."""

import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer

from awa_py import durations
from awa_py.errors import AwaError
from awa_py.model.names import check_queue
from awa_py.model.rates import MAX_COUNT, Rate

T = TypeVar("T")

DEFAULT = "default"
OFF = "off"
MAX_JOB_ID = 2**63 - 1


def as_usage_error(read: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap a parser so that an AwaError is a usage error."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except AwaError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


parse_queue = as_usage_error(check_queue)


@as_usage_error
def parse_duration(text: str) -> timedelta:
    return durations.parse(text)


def parse_id(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_JOB_ID:
        raise typer.BadParameter(f'"{text}" is not a job id: use a number of at least 1')
    return int(text)


def parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f'"{text}" is not a time: write e.g. 2026-01-31T09:00+01:00') from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f'"{text}" has no UTC offset: write e.g. {text}+00:00')
    return moment


def parse_setting(text: str) -> timedelta | str:
    """Parse a duration, or `default`."""
    return DEFAULT if text == DEFAULT else parse_duration(text)


def parse_count(text: str) -> int | str:
    """Parse a number of jobs, or `default`."""
    if text == DEFAULT:
        return DEFAULT
    if not text.isdecimal() or not text.isascii() or len(text) > len(str(MAX_COUNT)) or not 1 <= int(text) <= MAX_COUNT:
        raise typer.BadParameter(f'"{text}" is not a number of jobs: use 1 to {MAX_COUNT}, or default')
    return int(text)


@as_usage_error
def parse_rate(text: str) -> Rate | str:
    """Parse a rate, or `default`."""
    return DEFAULT if text == DEFAULT else Rate.parse(text)


def parse_aging(text: str) -> timedelta | str:
    """Parse a duration, `off`, or `default`."""
    return timedelta(0) if text == OFF else parse_setting(text)


def parse_json(text: str) -> Any:
    """Parse JSON; `-` reads it from standard input."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"invalid JSON: {error}") from None


def parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; `-` reads it from standard input."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise typer.BadParameter(f'expected a JSON object such as \'{{"to": "me"}}\', not {_json_type(value)}')
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _json_type(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CheckOption = Annotated[
    bool, typer.Option("--check", envvar="AWA_CHECK", help="Check the options, the settings and the app, and exit.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JobId = Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="Id of the job.")]
QueueName = Annotated[str, typer.Argument(metavar="NAME", parser=parse_queue, help="Name of the queue.")]
ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
AppArgument = Annotated[
    str, typer.Argument(metavar="APP", envvar="AWA_APP", help="The app, as module:attribute.", show_default=False)
]
