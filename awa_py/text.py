"""Text for logs, errors and the command line: ordinals, durations, and errors with their causes."""

import re
import traceback
from datetime import timedelta

# Control characters, line separators, characters that change the direction of text, and lone surrogates. awa.is_plain
# in SQL is the same rule, without what PostgreSQL cannot store anyway.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# A password may contain : / ? # and @ itself, so it ends at the last @ of the word. `user:password@` is a placeholder.
_URL_PASSWORD = re.compile(r"(//(?!user:password@)[^:/@\s]*:)\S*@")
_PASSWORD_PARAMETER = re.compile(r"(password=)[^\s&]+", re.IGNORECASE)
_DURATION_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_DATA_EXCEPTION = "22"  # the SQLSTATE class
MAX_LOGGED_CHARACTERS = 20_000
MAX_LOGGED_FRAMES = 20
_MIN_UNITS = 2  # 90 minutes are "90m", not "1h"


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 11th, 111th, 121st."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 job, 2 jobs, 1,000 jobs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short_duration(duration: timedelta) -> str:
    """Return an approximate duration in one unit: 12s, 5m, 90m, 3h, 4d."""
    seconds = round(abs(duration).total_seconds())
    for size, unit in _DURATION_UNITS:
        if seconds >= _MIN_UNITS * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def relative_time(offset: timedelta) -> str:
    """Return an approximate time relative to now: in 5m, 3s ago, now."""
    if abs(offset) < timedelta(seconds=0.5):
        return "now"
    return f"in {short_duration(offset)}" if offset > timedelta(0) else f"{short_duration(offset)} ago"


def is_plain(text: str) -> bool:
    """Return whether the text has no characters that could forge a line of a log or of a terminal."""
    return _CONTROL.search(text) is None


def escape(text: str) -> str:
    """Return the text with such characters as escapes, for logs and terminals. Line breaks and tabs stay."""
    return _CONTROL.sub(_escape_character, text)


def escape_json(text: str) -> str:
    """Return JSON with such characters as escapes of JSON. Line breaks of its layout stay."""
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def describe_chain(error: BaseException, limit: int = 4000) -> str:
    """Return an error and its chain of causes, the outermost first."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = error_text(current)
        name = class_name(current)
        parts.append(f"{name}: {text}" if text else name)
        current = cause_of(current)
    return clean_text(" ← ".join(parts), limit)


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error that this one was raised from, or while handling it."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def describe(error: BaseException) -> str:
    """Return an error in one line, without passwords and without values from rows.

    From PostgreSQL errors it keeps only the message, since DETAIL quotes rows. Messages about invalid data quote the
    data too: they are cut before it.
    """
    text = error_text(error)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and error.args:
        text = str(error.args[0])
        if state.startswith(_DATA_EXCEPTION):
            text = re.sub(r'"[^"]*"', '"…"', text.partition(":")[0])
    return redact(" ".join(text.split()) or class_name(error))


def redact(text: str) -> str:
    """Return the text without the passwords of URLs and connection strings."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", text))


def format_frames(error: BaseException) -> str:
    """Return the traceback without the error's message, which may contain data."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def error_text(error: BaseException) -> str:
    """Return the message of an error."""
    try:
        return str(error)
    except BaseException as failure:  # even KeyboardInterrupt: a broken __str__ must neither hide the error nor stop us
        return f"(its message cannot be shown: __str__ raised {class_name(failure)})"


def class_name(value: object, attribute: str = "__name__") -> str:
    """Return the name of a value's class, even if its metaclass is broken."""
    return str(type.__dict__[attribute].__get__(type(value)))


class HandlerError(Exception):
    """Logged instead of an exception that cannot be logged, or whose text is too long."""


def loggable(error: BaseException | None) -> BaseException | None:
    """Return the error; or one with its innermost frames and a bounded text, if logging it would fail or be too long.

    The classes of exceptions are code of their own: formatting one may raise anything, e.g. KeyboardInterrupt.
    """
    if error is None:
        return None
    try:
        if sum(map(len, traceback.format_exception(error))) <= MAX_LOGGED_CHARACTERS:
            return error
        text, frames = describe_chain(error), error.__traceback__
    except BaseException as failure:
        text, frames = f"{class_name(error)} (it cannot be shown: {class_name(failure)})", None
    while frames is not None and sum(1 for _ in traceback.walk_tb(frames)) > MAX_LOGGED_FRAMES:
        frames = frames.tb_next
    return HandlerError(text).with_traceback(frames)


def _escape_character(found: re.Match[str]) -> str:
    character = found[0]
    return character if character in "\n\t" else character.encode("unicode_escape").decode()


def clean_text(text: str, limit: int = 4000) -> str:
    """Return text that PostgreSQL can store, cut to `limit` characters."""
    storable = text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return storable if len(storable) <= limit else storable[: limit - 1] + "…"
