"""Where operators send jobs that name no queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """A row of `awa.routes`."""

    pattern: str
    queue: str
    updated_at: datetime


async def list_routes(session: Session) -> list[RouteRow]:
    return [RouteRow(**dict(row)) for row in await session.fetch("list_routes")]


async def set_route(session: Session, pattern: str, queue: str) -> None:
    """Adds or changes a route."""
    await session.fetch("set_route", pattern, queue)


async def delete_route(session: Session, pattern: str) -> bool:
    """Whether there was such a route."""
    return bool(await session.fetchval("delete_route", pattern))


async def route_kinds(session: Session, kinds: Sequence[str]) -> dict[str, str]:
    """The queue that a route gives to each kind that has one."""
    return {row[0]: row[1] for row in await session.fetch("route_kinds", kinds)}
