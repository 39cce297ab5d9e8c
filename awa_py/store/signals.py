"""Signals to durable jobs, as clients send them."""

import asyncpg

from awa_py.errors import InvalidJob, JobEnded, JobNotFound, TooManySignals
from awa_py.store.session import Session

# What awa.signal raises. Its messages are sentences for the caller.
_ERRORS = {
    asyncpg.NoDataFoundError: JobNotFound,
    asyncpg.ObjectNotInPrerequisiteStateError: JobEnded,
    asyncpg.ProgramLimitExceededError: TooManySignals,
    asyncpg.CheckViolationError: InvalidJob,
}


async def send_signal(session: Session, job_id: int, name: str, data: str | None, key: str | None) -> bool:
    """Send a signal, whose data is JSON. Return False if one with the same name and key was sent before."""
    try:
        return bool(await session.fetchval("send_signal", job_id, name, data, key))
    except tuple(_ERRORS) as error:
        raise _ERRORS[type(error)](error.args[0]) from None
