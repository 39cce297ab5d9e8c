"""Enqueue many jobs with COPY. Lines are produced while PostgreSQL reads them.

The lines are text. asyncpg's records would go through the connection's codecs, and the user may have set their own.
"""

import functools
import json
import re
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from awa_py.db.columns import MAX_INLINE_BYTES
from awa_py.errors import InvalidJob
from awa_py.model.job import DEFAULT_QUEUE, JobSpec, NewJob, State, interval_text
from awa_py.store.enqueue import REFUSALS, has_payload
from awa_py.store.routes import route_kinds
from awa_py.store.session import Session
from awa_py.text import describe

CHUNK_CHARACTERS = 64 * 1024
QUOTE, DELIMITER = "\x01", "\x02"  # JSON never contains them, so arguments need no escapes

COLUMN_DEFAULTS = {"queue": DEFAULT_QUEUE, "priority": "2", "max_attempts": "25"}
KEY_COLUMNS = ("concurrency_key", "concurrency_limit", "ordered")

# Jobs of one call share a few JobSpecs. Dictionaries by spec use its id(), because hashing a spec is slow.
SpecQueues = Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedJobs:
    """The enqueued jobs: their ids in order, the queue of each spec, and the time of the transaction."""

    ids: Sequence[int]
    queues: SpecQueues
    now: datetime


class LineParts(NamedTuple):
    """What is between a job's id and its arguments. A concurrency key comes between `before_key` and `after_key`."""

    without_key: str
    before_key: str
    after_key: str


async def copy_jobs(session: Session, jobs: Sequence[NewJob]) -> CopiedJobs:
    """Enqueue jobs without unique keys. The connection has to be in a transaction.

    Ids and positions follow the order of the jobs.
    """
    reserved = await session.fetchrow("reserve_ids", len(jobs))
    assert reserved is not None
    now: datetime = reserved["now"]
    ids = (
        range(reserved["first"], reserved["last"] + 1)
        if reserved["ids"] is None
        else [int(number) for number in reserved["ids"].strip("{}").split(",")]
    )
    specs = {id(job.spec): job.spec for job in jobs}
    queues = await _choose_queues(session, specs)
    scheduled = {key: spec for key, spec in specs.items() if spec.resolve_run_at(now) > now}
    ready = {key: spec for key, spec in specs.items() if key not in scheduled}
    keyed = any(job.concurrency_key is not None for job in jobs)
    for table, table_specs in (("ready", ready), ("scheduled", scheduled)):
        if table_specs:
            columns, parts = _columns_and_parts(table_specs, queues, table, now, keyed=keyed)
            with _naming_refused_job(jobs, functools.partial(_written_args, parts)):
                await _copy(session, table, columns, _job_lines(zip(ids, jobs, strict=True), parts))
    if any(map(has_payload, jobs)):
        with _naming_refused_job(jobs, _payload):
            await _copy(session, "payloads", ["job_id", "args"], _payload_lines(zip(ids, jobs, strict=True)))
    due = min((spec.resolve_run_at(now) for spec in scheduled.values()), default=None)
    await session.fetchval("wake_queues", sorted({queues[key] for key in ready}), due)
    return CopiedJobs(ids=ids, queues=queues, now=now)


async def _choose_queues(session: Session, specs: Mapping[int, JobSpec]) -> SpecQueues:
    """Return the queue of each spec: its own, else that of a route, else its default."""
    unnamed = sorted({spec.kind for spec in specs.values() if spec.queue is None})
    routed = await route_kinds(session, unnamed) if unnamed else {}
    return {key: spec.queue or routed.get(spec.kind, spec.default_queue) for key, spec in specs.items()}


async def _copy(session: Session, table: str, columns: Sequence[str], lines: Iterable[str]) -> None:
    await session.connection.copy_to_table(
        table,
        schema_name=session.schema.name,
        columns=columns,
        source=_chunks(lines),
        format="csv",
        delimiter=DELIMITER,
        quote=QUOTE,
        encoding="utf-8",
    )


async def _chunks(lines: Iterable[str]) -> AsyncIterator[bytes]:
    """Join lines to chunks of about CHUNK_CHARACTERS."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size >= CHUNK_CHARACTERS:
            yield "".join(chunk).encode()
            chunk, size = [], 0
    yield "".join(chunk).encode()


def _job_lines(rows: Iterable[tuple[int, NewJob]], parts: Mapping[int, LineParts]) -> Iterator[str]:
    """Yield the lines of the jobs whose specs are in `parts`. Arguments that go to `awa.payloads` are NULL."""
    for job_id, job in rows:
        line_parts = parts.get(id(job.spec))
        if line_parts is None:  # the job belongs to the other table
            continue
        key, args = job.concurrency_key, job.args_json
        middle = line_parts[0] if key is None else f"{line_parts[1]}{key.replace(QUOTE, QUOTE * 2)}{line_parts[2]}"
        if len(args) > MAX_INLINE_BYTES:
            yield f"{job_id}{middle.removesuffix(QUOTE)}\n"
        else:
            yield f"{job_id}{middle}{args.replace(QUOTE, QUOTE * 2)}{QUOTE}\n"


def _payload_lines(rows: Iterable[tuple[int, NewJob]]) -> Iterator[str]:
    for job_id, job in rows:
        if has_payload(job):
            yield f"{job_id}{DELIMITER}{QUOTE}{job.args_json.replace(QUOTE, QUOTE * 2)}{QUOTE}\n"


def _columns_and_parts(
    specs: Mapping[int, JobSpec], queues: SpecQueues, table: str, now: datetime, *, keyed: bool
) -> tuple[list[str], dict[int, LineParts]]:
    """Return the columns that the specs set, and the line parts of each spec."""
    fields = {key: _fields(spec, queues[key], table, now) for key, spec in specs.items()}
    columns = sorted({column for spec_fields in fields.values() for column in spec_fields})
    # A column that one spec sets is written for all of them, and NULL is not the default.
    defaults = COLUMN_DEFAULTS | {"run_at": now.isoformat()}
    parts = {
        key: _line_parts([(defaults | fields[key]).get(column) for column in columns], spec, keyed=keyed)
        for key, spec in specs.items()
    }
    return ["id", *columns, *(KEY_COLUMNS if keyed else ()), "args"], parts


def _fields(spec: JobSpec, queue: str, table: str, now: datetime) -> dict[str, str]:
    """Return the columns whose values differ from the table's defaults, as text."""
    values = {"queue": queue, "priority": str(spec.priority), "max_attempts": str(spec.max_attempts)}
    fields = {"kind": spec.kind, **{name: text for name, text in values.items() if text != COLUMN_DEFAULTS[name]}}
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


def _line_parts(fields: Iterable[str | None], spec: JobSpec, *, keyed: bool) -> LineParts:
    # NULL is an empty field without quotes.
    quoted = ("" if field is None else f"{QUOTE}{field.replace(QUOTE, QUOTE * 2)}{QUOTE}" for field in fields)
    before_key = DELIMITER + DELIMITER.join(quoted) + DELIMITER
    no_key = DELIMITER * len(KEY_COLUMNS) if keyed else ""
    after_key = DELIMITER.join((QUOTE, str(spec.concurrency_limit), str(spec.ordered), QUOTE))
    return LineParts(before_key + no_key + QUOTE, before_key + QUOTE, after_key)


def _written_args(parts: Container[int], job: NewJob) -> str | None:
    """Return the arguments in the job's line, None if the job is not copied to this table."""
    return None if id(job.spec) not in parts else "" if has_payload(job) else job.args_json


def _payload(job: NewJob) -> str | None:
    return job.args_json if has_payload(job) else None


@contextmanager
def _naming_refused_job(jobs: Sequence[NewJob], written_args: Callable[[NewJob], str | None]) -> Iterator[None]:
    """Turn a refusal of PostgreSQL into an InvalidJob that names the job."""
    try:
        yield
    except (*REFUSALS, UnicodeEncodeError) as error:
        refused = _refused_job(error, jobs, written_args)
        raise InvalidJob(f"{refused}PostgreSQL refused the job: {describe(error)}") from None


def _refused_job(error: Exception, jobs: Sequence[NewJob], written_args: Callable[[NewJob], str | None]) -> str:
    """Return the start of the error message that names the job, if PostgreSQL reported its line."""
    found = re.search(r"^COPY \w+, line (\d+)", getattr(error, "context", None) or "", re.MULTILINE)
    line = int(found[1]) if found else 0
    first = True
    for number, job in enumerate(jobs, 1):
        if found and (args := written_args(job)) is not None:
            # JSON written by hand may have line breaks. PostgreSQL does not count those inside the first row: it learns
            # the line ending from its end.
            line -= 1 if first else 1 + args.count("\n")
            first = False
            if line <= 0:
                return f"{job.kind} (job {number} of {len(jobs)}): "
    return ""
