"""New → available or scheduled, many at once: by COPY, whose lines are written while PostgreSQL takes them in.

The lines are text of our own making, not asyncpg's records: those would go through the codecs of the connection,
which may be its owner's own ones.
"""

import json
import re
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from awa_py.errors import InvalidJob
from awa_py.job import NewJob, State, Terms, interval_text
from awa_py.store.enqueue import REFUSALS
from awa_py.store.session import Session
from awa_py.wording import describe

CHUNK_CHARACTERS = 64 * 1024
QUOTE, DELIMITER = "\x01", "\x02"  # no JSON holds them: arguments go as they are

USUAL = {"queue": "default", "priority": "2", "max_attempts": "25"}  # the columns' defaults


@dataclass(frozen=True, slots=True)
class Copied:
    """The answer to many jobs: their ids, in their order, and the moment at which they were enqueued."""

    ids: Sequence[int]
    now: datetime


async def copy_jobs(session: Session, jobs: Sequence[NewJob]) -> Copied:
    """Enqueues jobs without unique keys, in the transaction that the connection has to be in.

    Ids and positions follow the order of the jobs.
    """
    reserved = await session.fetchrow("reserve_ids", len(jobs))
    assert reserved is not None
    first, last, listed, now = reserved
    ids = listed or range(first, last + 1)
    terms = {id(job.terms): job.terms for job in jobs}
    later = {key: shared for key, shared in terms.items() if shared.run_at_from(now) > now}
    ready = {key: shared for key, shared in terms.items() if key not in later}
    for table, chosen in (("ready", ready), ("scheduled", later)):
        if chosen:
            try:
                await _copy(session, table, zip(ids, jobs, strict=True), chosen, now)
            except (*REFUSALS, UnicodeEncodeError) as error:
                culprit = _culprit(error, jobs, chosen)
                raise InvalidJob(f"{culprit}PostgreSQL refused the job: {describe(error)}") from None
    queues = sorted({shared.queue for shared in ready.values()})
    due = min((shared.run_at_from(now) for shared in later.values()), default=None)
    await session.fetchval("wake_queues", queues, due)
    return Copied(ids, now)


async def _copy(
    session: Session, table: str, rows: Iterable[tuple[int, NewJob]], terms: Mapping[int, Terms], now: datetime
) -> None:
    fields = {key: _fields(shared, table, now) for key, shared in terms.items()}
    columns = sorted({column for written in fields.values() for column in written})
    # What one of the jobs names, all must: NULL is not the default.
    missing = USUAL | {"run_at": now.isoformat()}
    heads = {key: _head([(missing | written).get(column) for column in columns]) for key, written in fields.items()}
    await session.connection.copy_to_table(
        table,
        schema_name=session.schema.name,
        columns=["id", *columns, "args"],
        source=_lines(rows, heads),
        format="csv",
        delimiter=DELIMITER,
        quote=QUOTE,
        encoding="utf-8",
    )


async def _lines(rows: Iterable[tuple[int, NewJob]], heads: Mapping[int, str]) -> AsyncIterator[bytes]:
    lines: list[str] = []
    size = 0
    for job_id, job in rows:
        head = heads.get(id(job.terms))
        if head is None:  # it goes into the other table
            continue
        line = f"{job_id}{head}{job.args_json.replace(QUOTE, QUOTE * 2)}{QUOTE}\n"
        lines.append(line)
        size += len(line)
        if size >= CHUNK_CHARACTERS:
            yield "".join(lines).encode()
            lines, size = [], 0
    yield "".join(lines).encode()


def _fields(terms: Terms, table: str, now: datetime) -> dict[str, str]:
    """The columns that these terms fill, as text; the others have defaults."""
    chosen = {"queue": terms.queue, "priority": str(terms.priority), "max_attempts": str(terms.max_attempts)}
    fields = {"kind": terms.kind, **{name: text for name, text in chosen.items() if text != USUAL[name]}}
    if table == "scheduled":
        fields["state"] = State.SCHEDULED
    if table == "scheduled" or terms.run_at is not None:
        fields["run_at"] = terms.run_at_from(now).isoformat()
    if terms.timeout is not None:
        fields["timeout"] = interval_text(terms.timeout)
    if terms.deadline is not None:
        fields["expires_at"] = terms.deadline.isoformat()
    if terms.tags:
        fields["tags"] = "{" + ",".join(re.sub(r'(["\\])', r"\\\1", tag).join('""') for tag in terms.tags) + "}"
    if terms.metadata:
        fields["metadata"] = json.dumps(dict(terms.metadata))
    if terms.parent_id is not None:
        fields["parent_id"] = str(terms.parent_id)
    return fields


def _head(fields: Iterable[str | None]) -> str:
    """What stands between a job's id and its arguments; a NULL is an empty field without quotes."""
    quoted = ("" if field is None else f"{QUOTE}{field.replace(QUOTE, QUOTE * 2)}{QUOTE}" for field in fields)
    return DELIMITER + DELIMITER.join(quoted) + DELIMITER + QUOTE


def _culprit(error: Exception, jobs: Sequence[NewJob], copied: Container[int]) -> str:
    """Which of the jobs it was, where PostgreSQL says in which line it stood."""
    found = re.search(r"^COPY \w+, line (\d+)", getattr(error, "context", None) or "", re.MULTILINE)
    line = int(found[1]) if found else 0
    for number, job in enumerate(jobs, 1):
        if found and id(job.terms) in copied:
            line -= 1 + job.args_json.count("\n")  # JSON that somebody wrote by hand may have lines
            if line <= 0:
                return f"{job.kind} (job {number} of {len(jobs)}): "
    return ""
