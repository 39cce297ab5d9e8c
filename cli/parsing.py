"""How texts on the command line become values. What cannot be read is wrong usage."""

import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer

from awa_py import durations
from awa_py.errors import AwaError
from awa_py.model.job import MAX_DURATION, check_queue
from awa_py.model.rates import MAX_COUNT, Rate

T = TypeVar("T")

DEFAULT = "default"
OFF = "off"
LARGEST_ID = 2**63 - 1


def as_usage_error(read: Callable[[str], T]) -> Callable[[str], T]:
    """The same, with awa's own errors as wrong usage."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except AwaError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


parse_queue = as_usage_error(check_queue)


@as_usage_error
def parse_duration(text: str) -> timedelta:
    length = durations.parse(text)
    if length > MAX_DURATION:
        raise typer.BadParameter(f'"{text}" is too long: {MAX_DURATION.days} days at the most')
    return length


def parse_id(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST_ID:
        raise typer.BadParameter(f'"{text}" is not a job\'s id: a number from 1 on')
    return int(text)


def parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f'"{text}" is not a time: write 2026-01-31T09:00+01:00') from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f'"{text}" has no offset: write {text}+00:00 for UTC, or your own')
    return moment


def parse_setting(text: str) -> timedelta | str:
    """A duration, or `default`."""
    return DEFAULT if text == DEFAULT else parse_duration(text)


def parse_count(text: str) -> int | str:
    """A number of jobs, or `default`."""
    if text == DEFAULT:
        return DEFAULT
    if not text.isdecimal() or not text.isascii() or len(text) > len(str(MAX_COUNT)) or not 1 <= int(text) <= MAX_COUNT:
        raise typer.BadParameter(f'"{text}" is not a number of jobs: from 1 to {MAX_COUNT}, or default')
    return int(text)


@as_usage_error
def parse_rate(text: str) -> Rate | str:
    """A rate, or `default`."""
    return DEFAULT if text == DEFAULT else Rate.parse(text)


def parse_aging(text: str) -> timedelta | str:
    """A duration, `off`, or `default`."""
    return timedelta(0) if text == OFF else parse_setting(text)


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object; `-` reads it from standard input."""
    try:
        value = json.loads(sys.stdin.read() if text == "-" else text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"this is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'a JSON object is wanted, such as \'{{"to": "me"}}\', not {_json_type(value)}')
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _json_type(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CheckOption = Annotated[
    bool, typer.Option("--check", envvar="AWA_CHECK", help="Only check the options, the settings and the app.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JobId = Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's id.")]
QueueName = Annotated[str, typer.Argument(metavar="NAME", parser=parse_queue, help="The queue's name.")]
ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
AppArgument = Annotated[
    str, typer.Argument(metavar="APP", envvar="AWA_APP", help="The app, as module:attribute.", show_default=False)
]
