"""What operators read of durable jobs: their checkpoints, and what they wait for.

Rows may have been edited by hand: what cannot be read is left out, and never an error.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from awa_py.store.rows import load_json
from awa_py.store.session import Session

MAX_RESULT_CHARACTERS = 10_000  # of each checkpoint
MAX_IDS = 5  # of children that a job waits for
MAX_BIGINT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCheckpoint:
    """A checkpoint of a job. A value that cannot be read is None."""

    name: str
    number: int | None  # the order of the calls
    type: str
    is_open: bool  # a wait that has begun; a timer stays open after it has fired
    lease: int | None
    tries: int | None
    took_s: float | None
    recorded_at: datetime | None
    until: datetime | None
    result: Any  # if `is_cut`: the beginning of its JSON, as text
    is_cut: bool
    error: str | None

    @property
    def children(self) -> list[tuple[int, int]]:
        """Return the ids of the children that it spawned, as ranges."""
        return _ranges(self.result) if self.type == "spawn" else []


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWait:
    """What a waiting job waits for: a time, signals, children, or what comes first."""

    since: datetime | None
    until: datetime | None
    signals: Sequence[str] = ()
    children: int = 0
    unfinished: int = 0  # of these children
    unfinished_ids: Sequence[int] = ()  # the first of them


async def list_checkpoints(session: Session, job_id: int) -> list[RecordedCheckpoint]:
    """Return the checkpoints of a job, in the order of its calls."""
    return [_checkpoint(row["checkpoint"]) for row in await session.fetch("list_checkpoints", job_id)]


async def get_wait(session: Session, job_id: int) -> JobWait | None:
    """Return what a job waits for, or None if it is not in the state `waiting`."""
    row = await session.fetchrow("get_wait", job_id)
    if row is None:
        return None
    loaded = load_json(row["waits"])
    waits = loaded if isinstance(loaded, dict) else {}
    groups = [group for group in _list(waits.get("children")) if isinstance(group, dict)]
    ranges = [each for group in groups for each in _ranges(group.get("ids"))]
    firsts, lasts = [first for first, _ in ranges], [last for _, last in ranges]
    found = await session.fetchrow("count_awaited_children", job_id, firsts, lasts, MAX_IDS)
    assert found is not None
    return JobWait(
        since=_time(waits.get("since")),
        until=row["until"],
        signals=[str(name) for name in _list(waits.get("signals"))],
        children=sum(last - first + 1 for first, last in ranges),
        unfinished=found["unfinished"],
        unfinished_ids=found["first_ids"],
    )


def _checkpoint(text: str) -> RecordedCheckpoint:
    loaded = load_json(text)
    values: dict[str, Any] = loaded if isinstance(loaded, dict) else {"result": loaded}
    checkpoint_type = _text(values.get("type"))
    took_s = values.get("took_s")
    result = values.get("result")
    is_long = len(text) > MAX_RESULT_CHARACTERS and checkpoint_type != "spawn"
    cut = _cut(result) if is_long else None
    return RecordedCheckpoint(
        name=_text(values.get("name")),
        number=_integer(values.get("number")),
        type=checkpoint_type,
        is_open=values.get("is_open") is True,
        lease=_integer(values.get("lease")),
        tries=_integer(values.get("tries")),
        took_s=took_s if isinstance(took_s, float) else _integer(took_s),
        recorded_at=_time(values.get("recorded_at")),
        until=_time(values.get("until")),
        result=result if cut is None else cut,
        is_cut=cut is not None,
        error=_error(values.get("error")),
    )


def _cut(value: Any) -> str | None:
    """Return the beginning of a value's JSON if it is long, else None."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""
    return text[:MAX_RESULT_CHARACTERS] if len(text) > MAX_RESULT_CHARACTERS else None


def _error(value: Any) -> str | None:
    """Return a recorded error as text: its class and its message."""
    match value:
        case None:
            return None
        case {"class": str() as name, "text": str() as text}:
            return f"{name}: {text}" if text else name
        case _:
            return _text(value)


def _ranges(value: Any) -> list[tuple[int, int]]:
    """Return ranges of ids: [[FIRST, LAST], …]."""
    return [
        (part[0], part[1])
        for part in _list(value)
        if isinstance(part, list)
        and len(part) == 2
        and all(_integer(number) is not None and 0 < number <= MAX_BIGINT for number in part)
        and part[0] <= part[1]
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):  # e.g. infinity
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
