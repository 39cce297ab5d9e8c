"""The schema as PostgreSQL's catalogs have it."""

from awa_py.store.session import Session

Catalog = dict[str, dict[str, str]]  # part → name → definition


async def list_catalog(session: Session) -> Catalog:
    """Every table, column, index, constraint, trigger and function; ask with an empty search path."""
    catalog: Catalog = {}
    for part, name, definition in await session.fetch("list_catalog"):
        catalog.setdefault(part, {})[name] = definition
    return catalog


async def list_broken_indexes(session: Session) -> list[tuple[str, str]]:
    """Table and index, where the index is of no use."""
    return [(table, index) for table, index in await session.fetch("list_broken_indexes")]
