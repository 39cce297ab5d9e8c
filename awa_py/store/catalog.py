"""The schema as PostgreSQL's catalogs have it."""

from dataclasses import dataclass
from datetime import date

from awa_py.store.session import Session

Catalog = dict[str, dict[str, str]]  # part → name → definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day, and the partition that its completed jobs should go to."""

    day: date
    name: str
    attached: bool
    there: bool


async def list_catalog(session: Session) -> Catalog:
    """Every table, column, index, constraint, trigger and function; ask with an empty search path."""
    catalog: Catalog = {}
    for part, name, definition in await session.fetch("list_catalog"):
        catalog.setdefault(part, {})[name] = definition
    return catalog


async def list_broken_indexes(session: Session) -> list[tuple[str, str]]:
    """Table and index, where the index is of no use."""
    return [(table, index) for table, index in await session.fetch("list_broken_indexes")]


async def list_days_ahead(session: Session, *, days: int) -> list[Day]:
    return [Day(**dict(row)) for row in await session.fetch("list_days_ahead", days)]


async def has_default_partition(session: Session) -> bool:
    return bool(await session.fetchval("has_default_partition"))


async def find_stray_completed_job(session: Session) -> date | None:
    """A day of which jobs are in the default partition."""
    day: date | None = await session.fetchval("find_stray_completed_job")
    return day
