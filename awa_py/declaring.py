"""Write what an app declares, its kinds and its schedules, unless a newer version of the app did."""

import logging
from collections.abc import Sequence
from itertools import groupby

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from awa_py.errors import InvalidJob
from awa_py.model.declarations import Declarations
from awa_py.model.job import NewJob
from awa_py.model.registry import CronDefinition
from awa_py.store import kinds as kind_store
from awa_py.store import schedules as schedule_store
from awa_py.store.kinds import DeclaredKind
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.declarations")

ROLLBACK = "After a rollback, run `awa kinds sync APP`"


async def declare_kinds(session: Session, declarations: Declarations) -> None:
    """Write the kinds of an app. Log those that a newer version of the app declares differently."""
    try:
        kinds = await kind_store.declare_kinds(session, declarations)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        # The worker can run all the same.
        logger.error("the kinds of this app could not be declared: %s", describe(error))
        return
    overruled = sorted((kind for kind in kinds if kind.is_overruled), key=_version)
    for version, group in groupby(overruled, key=_version):
        logger.warning(
            "these kinds are as the newer version %s of the app declares them, not as version %s: %s. %s",
            version,
            declarations.version,
            ", ".join(kind.kind for kind in group),
            ROLLBACK,
        )


async def declare_schedules(
    session: Session, definitions: Sequence[CronDefinition], *, as_newest: bool = False, level: int = logging.WARNING
) -> list[str]:
    """Write the schedules of an app. Never delete one, never resume a paused one. Return the names of those written.

    Log those that a newer version of the app, or an operator, defines differently, at this level.
    """
    written: list[str] = []
    for definition in definitions:
        try:
            declared = await schedule_store.declare_schedule(session, definition, as_newest=as_newest)
        except CONNECTION_LOST:
            raise
        except asyncpg.PostgresError as error:
            logger.error("schedule %s could not be written: %s", definition.name, describe(error))
            continue
        if declared.is_written:
            written.append(definition.name)
        elif declared.is_overruled and declared.version is None:
            message = "schedule %s is as an operator set it, not as the app declares it. `awa cron delete %s` ends that"
            logger.log(level, message, definition.name, definition.name)
        elif declared.is_overruled:
            message = "schedule %s is as the newer version %s of the app declares it, not as version %s. %s"
            logger.log(level, message, definition.name, declared.version, definition.version, ROLLBACK)
    return written


async def is_declared(session: Session, kind: str) -> bool:
    """Return whether an app has declared the kind."""
    return not await kind_store.undeclared_kinds(session, [kind])


async def check_arguments(session: Session, job: NewJob) -> None:
    """Raise InvalidJob if an app has declared the job's kind, and the job does not fit."""
    try:
        await kind_store.complete_job(session, job)
    except asyncpg.CheckViolationError as error:
        raise InvalidJob(describe(error)) from None


def _version(kind: DeclaredKind) -> str:
    return kind.version
