"""How awa puts things into words: ordinals, rough times, and errors with all their causes."""

import re
import traceback
from datetime import timedelta

_ROUGH_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_UNREADABLE_DATA = "22"  # the class of SQLSTATEs
_MANY = 2  # of a unit: 90 minutes are 90m rather than 1h


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th, 111th, 121st."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def count(number: int, noun: str) -> str:
    """1 job, 2 jobs, 1,000 jobs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short_duration(length: timedelta) -> str:
    """About how long: 12s, 5m, 90m, 3h, 4d."""
    seconds = round(abs(length).total_seconds())
    for size, unit in _ROUGH_UNITS:
        if seconds >= _MANY * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def relative_time(distance: timedelta) -> str:
    """How far away: in 5m, 3s ago, now."""
    if abs(distance) < timedelta(seconds=0.5):
        return "now"
    return f"in {short_duration(distance)}" if distance > timedelta(0) else f"{short_duration(distance)} ago"


def describe_chain(error: BaseException, limit: int = 4000) -> str:
    """An error and the whole chain of its causes, the outermost first."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = _text(current)
        parts.append(f"{type(current).__name__}: {text}" if text else type(current).__name__)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return clean_text(" ← ".join(parts), limit)


def describe(error: BaseException) -> str:
    """An error in one line, without a password in it, or a value of somebody's row.

    Of what PostgreSQL says only the first sentence: its DETAIL quotes rows. What it says of data that it cannot read
    ends where the data begins.
    """
    text = _text(error)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and error.args:
        text = str(error.args[0])
        if state.startswith(_UNREADABLE_DATA):
            text = re.sub(r'"[^"]*"', '"…"', text.partition(":")[0])
    text = " ".join(text.split()) or type(error).__name__
    return re.sub(r"(postgres(?:ql)?://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def format_frames(error: BaseException) -> str:
    """Where an error came from: places in the code, and not a word of the error's own."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # an error whose own words fail is still an error
        return f"(its text cannot be shown: {type(failure).__name__})"


def clean_text(text: str, limit: int = 4000) -> str:
    """Text that PostgreSQL can store, cut to a readable length."""
    storable = text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return storable if len(storable) <= limit else storable[: limit - 1] + "…"
