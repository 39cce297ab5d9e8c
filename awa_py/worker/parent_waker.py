"""Wakes durable jobs whose children have ended."""

from collections.abc import Sequence
from logging import WARNING

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.observability.logs import LogThrottle
from awa_py.store.checkpoints import wake_parents
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.outcomes import AttemptSuspended


class ParentWaker:
    """Notes jobs that may have to be woken, and wakes those whose children have all ended."""

    def __init__(self, connection: ReconnectingConnection, schema: Schema, log_throttle: LogThrottle) -> None:
        self._connection = connection
        self._schema = schema
        self._log_throttle = log_throttle
        self._parents: set[int] = set()

    def note(self, jobs: Sequence[ClaimedJob]) -> None:
        """Note the parents of jobs, any of which may have ended, and the jobs that wait for children now.

        The jobs have outcomes of one type.
        """
        self._parents.update(job.parent_id for job in jobs if job.parent_id is not None)
        if jobs and isinstance(jobs[0].outcome, AttemptSuspended):
            self._parents.update(job.id for job in jobs if waits_for_children(job))

    async def wake(self) -> None:
        """Wake jobs whose children have ended. The commits are done: the last one of them sees all the others."""
        while self._parents:
            parents = sorted(self._parents)
            try:
                session = Session(await self._connection.get(), self._schema)
                await wake_parents(session, parents)
                self._parents.difference_update(parents)
            except CONNECTION_LOST:
                self._connection.drop()
            except asyncpg.PostgresError as error:  # the leader will look
                values = (len(parents), describe(error))
                self._log_throttle.log(WARNING, "parents", "%d jobs could not be woken: %s", *values)
                self._parents.clear()


def waits_for_children(job: ClaimedJob) -> bool:
    """Return whether a suspended job waits for children."""
    return isinstance(job.outcome, AttemptSuspended) and bool(job.outcome.suspension.children)
