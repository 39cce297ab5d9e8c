"""The whole history of a job: its row, its events, what handlers logged, what processes logged, and the faults."""

import json
from datetime import UTC, datetime
from pathlib import Path

from awa_py.connections import DedicatedConnection
from tests.chaos.evidence import Evidence

BEFORE_S, AFTER_S = 10.0, 15.0
MAX_LOG_LINES = 20


async def history(connection: DedicatedConnection, evidence: Evidence, job: int, directory: Path) -> str:
    """Return everything that is known about a job, in the order of time."""
    row = await connection.fetchval("SELECT to_jsonb(jobs) FROM awa.jobs WHERE id = $1", job)
    events = await connection.fetch("SELECT * FROM awa.events WHERE job_id = $1 ORDER BY at", job)
    entries: list[tuple[float, str]] = []
    for event in events:
        text = f"event: {event['event']}, lease {event['lease']}, attempt {event['attempt']}, {event['detail'] or ''}"
        entries.append((event["at"].timestamp(), text))
    for start in evidence.by_job.get(job, ()):
        life = evidence.life_of.get(start.pid)
        who = f"{life.name if life else '?'} (pid {start.pid})"
        entries.append((start.claimed_at, f"handler: claimed by {who}, lease {start.lease}"))
        age = f"lease {start.lease}, {start.lease_age_s:.2f} s old"
        entries.append((start.at, f"handler: attempt {start.attempt} starts in {who}, {age}, nonce {start.nonce}"))
        if start.ended:
            entries.append((start.ended, f"handler: attempt {start.attempt} ends in {who}: {start.how}"))
    if entries:
        first, last = min(entries)[0] - BEFORE_S, max(entries)[0] + AFTER_S
        for fault in evidence.faults:
            if fault.began < last and fault.ended > first:
                entries += [(fault.began, f"FAULT begins: {fault}"), (fault.ended, f"FAULT ends: {fault}")]
        for life in evidence.lives:
            if life.ended and first < life.ended < last:
                entries.append((life.ended, f"process {life.name} (pid {life.pid}) ended"))
    lines = [f"--- job {job}: {_shown(row)}"]
    lines += [f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}  {text}" for at, text in sorted(entries)]
    return "\n".join([*lines, *_log_lines(job, directory)])


def _shown(row: str | None) -> str:
    if row is None:
        return "there is no such job"
    values = json.loads(row)
    return json.dumps({name: value for name, value in values.items() if value not in (None, [], {})})


def _log_lines(job: int, directory: Path) -> list[str]:
    wanted = (f"job {job} ", f'"job_id": {job},')
    found = [
        f"{log.stem}: {line[:300]}"
        for log in sorted(directory.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if any(words in line for words in wanted)
    ]
    return found[:MAX_LOG_LINES]
