"""New → available or scheduled, many at once: by COPY, whose lines are written while PostgreSQL takes them in.

The lines are text of our own making, not asyncpg's records: those would go through the codecs of the connection,
which may be its owner's own ones.
"""

import json
import re
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from awa_py.errors import InvalidJob
from awa_py.model.job import DEFAULT_QUEUE, JobSpec, NewJob, State, interval_text
from awa_py.store.enqueue import REFUSALS
from awa_py.store.routes import route_kinds
from awa_py.store.session import Session
from awa_py.text import describe

CHUNK_CHARACTERS = 64 * 1024
QUOTE, DELIMITER = "\x01", "\x02"  # no JSON holds them: arguments go as they are

USUAL = {"queue": DEFAULT_QUEUE, "priority": "2", "max_attempts": "25"}  # the columns' defaults
KEY_COLUMNS = ("concurrency_key", "concurrency_limit", "ordered")

Queues = Mapping[int, str]  # for spec, by their id()


@dataclass(frozen=True, slots=True)
class CopiedJobs:
    """The answer to many jobs: their ids, in their order, their queues, and the moment at which they were enqueued."""

    ids: Sequence[int]
    queues: Queues
    now: datetime


class Head(NamedTuple):
    """What stands between a job's id and its arguments. A key, where it has one, stands in the middle of that."""

    without_key: str
    before_key: str
    after_key: str


async def copy_jobs(session: Session, jobs: Sequence[NewJob]) -> CopiedJobs:
    """Enqueues jobs without unique keys, in the transaction that the connection has to be in.

    Ids and positions follow the order of the jobs.
    """
    reserved = await session.fetchrow("reserve_ids", len(jobs))
    assert reserved is not None
    first, last, listed, now = reserved
    ids = listed or range(first, last + 1)
    spec = {id(job.spec): job.spec for job in jobs}
    queues = await _queues(session, spec)
    later = {key: shared for key, shared in spec.items() if shared.resolve_run_at(now) > now}
    ready = {key: shared for key, shared in spec.items() if key not in later}
    keyed = any(job.concurrency_key is not None for job in jobs)
    for table, chosen in (("ready", ready), ("scheduled", later)):
        if chosen:
            columns, heads = _heads(chosen, queues, table, now, keyed=keyed)
            try:
                await _copy(session, table, columns, _lines(zip(ids, jobs, strict=True), heads))
            except (*REFUSALS, UnicodeEncodeError) as error:
                culprit = _culprit(error, jobs, chosen)
                raise InvalidJob(f"{culprit}PostgreSQL refused the job: {describe(error)}") from None
    due = min((shared.resolve_run_at(now) for shared in later.values()), default=None)
    await session.fetchval("wake_queues", sorted({queues[key] for key in ready}), due)
    return CopiedJobs(ids, queues, now)


async def _queues(session: Session, spec: Mapping[int, JobSpec]) -> Queues:
    """Where jobs on each of these spec go."""
    unnamed = sorted({shared.kind for shared in spec.values() if shared.queue is None})
    routed = await route_kinds(session, unnamed) if unnamed else {}
    return {key: shared.queue or routed.get(shared.kind, shared.default_queue) for key, shared in spec.items()}


async def _copy(session: Session, table: str, columns: Sequence[str], lines: AsyncIterator[bytes]) -> None:
    await session.connection.copy_to_table(
        table,
        schema_name=session.schema.name,
        columns=columns,
        source=lines,
        format="csv",
        delimiter=DELIMITER,
        quote=QUOTE,
        encoding="utf-8",
    )


async def _lines(rows: Iterable[tuple[int, NewJob]], heads: Mapping[int, Head]) -> AsyncIterator[bytes]:
    lines: list[str] = []
    size = 0
    for job_id, job in rows:
        head = heads.get(id(job.spec))
        if head is None:  # it goes into the other table
            continue
        key = job.concurrency_key
        about = head[0] if key is None else f"{head[1]}{key.replace(QUOTE, QUOTE * 2)}{head[2]}"
        line = f"{job_id}{about}{job.args_json.replace(QUOTE, QUOTE * 2)}{QUOTE}\n"
        lines.append(line)
        size += len(line)
        if size >= CHUNK_CHARACTERS:
            yield "".join(lines).encode()
            lines, size = [], 0
    yield "".join(lines).encode()


def _heads(
    spec: Mapping[int, JobSpec], queues: Queues, table: str, now: datetime, *, keyed: bool
) -> tuple[list[str], dict[int, Head]]:
    """The columns that these spec fill, and what stands in them."""
    fields = {key: _fields(shared, queues[key], table, now) for key, shared in spec.items()}
    columns = sorted({column for written in fields.values() for column in written})
    # What one of the jobs names, all must: NULL is not the default.
    missing = USUAL | {"run_at": now.isoformat()}
    heads = {
        key: _head([(missing | fields[key]).get(column) for column in columns], shared, keyed=keyed)
        for key, shared in spec.items()
    }
    return ["id", *columns, *(KEY_COLUMNS if keyed else ()), "args"], heads


def _fields(spec: JobSpec, queue: str, table: str, now: datetime) -> dict[str, str]:
    """The columns that these spec fill, as text; the others have defaults."""
    chosen = {"queue": queue, "priority": str(spec.priority), "max_attempts": str(spec.max_attempts)}
    fields = {"kind": spec.kind, **{name: text for name, text in chosen.items() if text != USUAL[name]}}
    if table == "scheduled":
        fields["state"] = State.SCHEDULED
    if table == "scheduled" or spec.run_at is not None:
        fields["run_at"] = spec.resolve_run_at(now).isoformat()
    if spec.timeout is not None:
        fields["timeout"] = interval_text(spec.timeout)
    if spec.deadline is not None:
        fields["expires_at"] = spec.deadline.isoformat()
    if spec.tags:
        fields["tags"] = "{" + ",".join(re.sub(r'(["\\])', r"\\\1", tag).join('""') for tag in spec.tags) + "}"
    if spec.metadata:
        fields["metadata"] = json.dumps(dict(spec.metadata))
    if spec.parent_id is not None:
        fields["parent_id"] = str(spec.parent_id)
    return fields


def _head(fields: Iterable[str | None], spec: JobSpec, *, keyed: bool) -> Head:
    """A NULL is an empty field without quotes."""
    quoted = ("" if field is None else f"{QUOTE}{field.replace(QUOTE, QUOTE * 2)}{QUOTE}" for field in fields)
    shared = DELIMITER + DELIMITER.join(quoted) + DELIMITER
    no_key = DELIMITER * len(KEY_COLUMNS) if keyed else ""
    after_key = DELIMITER.join((QUOTE, str(spec.concurrency_limit), str(spec.ordered), QUOTE))
    return Head(shared + no_key + QUOTE, shared + QUOTE, after_key)


def _culprit(error: Exception, jobs: Sequence[NewJob], copied: Container[int]) -> str:
    """Which of the jobs it was, where PostgreSQL says in which line it stood."""
    found = re.search(r"^COPY \w+, line (\d+)", getattr(error, "context", None) or "", re.MULTILINE)
    line = int(found[1]) if found else 0
    first = True
    for number, job in enumerate(jobs, 1):
        if found and id(job.spec) in copied:
            # PostgreSQL counts no lines inside of the first row: its end says what the end of a line is.
            line -= 1 if first else 1 + _lines_inside(job)
            first = False
            if line <= 0:
                return f"{job.kind} (job {number} of {len(jobs)}): "
    return ""


def _lines_inside(job: NewJob) -> int:
    """Tags, a key, and JSON that somebody wrote by hand may have lines."""
    return sum(text.count("\n") for text in (job.args_json, job.concurrency_key or "", *job.spec.tags))
