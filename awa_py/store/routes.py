"""The routes: patterns that choose the queue of jobs that were enqueued without one."""

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
    """Create or change a route."""
    await session.fetch("set_route", pattern, queue)


async def delete_route(session: Session, pattern: str) -> bool:
    """Delete a route. Return whether it existed."""
    return bool(await session.fetchval("delete_route", pattern))


async def route_kinds(session: Session, kinds: Sequence[str]) -> dict[str, str]:
    """Return the queue of each kind that has a route."""
    return {row["kind"]: row["queue"] for row in await session.fetch("route_kinds", kinds)}
