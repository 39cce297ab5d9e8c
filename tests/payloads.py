"""Jobs with a payload, for tests."""

from typing import Any

from awa_py.db.columns import MAX_INLINE_BYTES
from awa_py.store.session import Session
from tests.support import put_one

LARGE = "x" * (MAX_INLINE_BYTES + 1)


async def payload_ids(session: Session) -> list[int]:
    return [row["job_id"] for row in await session.connection.fetch("SELECT job_id FROM awa.payloads ORDER BY job_id")]


async def jobs_without_args(session: Session) -> list[int]:
    """Return the ids of the jobs whose rows say that their arguments are in awa.payloads."""
    tables = ("ready", "scheduled", "running", "completed", "dead")
    query = " UNION ALL ".join(f"SELECT id FROM awa.{table} WHERE args IS NULL" for table in tables)
    return sorted(row["id"] for row in await session.connection.fetch(query))


async def assert_paired(session: Session, *, jobs: int) -> None:
    """Assert that this number of jobs have a payload, and that neither is without the other."""
    ids = await payload_ids(session)
    assert ids == await jobs_without_args(session)
    assert len(ids) == jobs


async def put_large(session: Session, **options: Any) -> int:
    return await put_one(session, args_json=f'{{"text": "{LARGE}"}}', **options)


async def complete(session: Session, job_id: int, at: str | None = None) -> None:
    """Move a job from `ready` to `completed`."""
    moved = "id, kind, queue, args, parent_id"
    await session.connection.execute(
        f"WITH taken AS (DELETE FROM awa.ready WHERE id = $1 RETURNING {moved}) "
        f"INSERT INTO awa.completed ({moved}, worker_id, attempted_at, finalized_at) "
        f"SELECT {moved}, gen_random_uuid(), now(), coalesce($2::text::timestamptz, now()) FROM taken",
        job_id,
        at,
    )
