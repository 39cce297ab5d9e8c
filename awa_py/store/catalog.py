"""The objects of the schema, from PostgreSQL's catalogs."""

from awa_py.store.session import Session

Catalog = dict[str, dict[str, str]]  # part → name → definition


async def list_catalog(session: Session) -> Catalog:
    """Return all tables, columns, indexes, constraints, triggers and functions.

    The connection needs an empty search path, so that all names in definitions are qualified.
    """
    catalog: Catalog = {}
    for row in await session.fetch("list_catalog"):
        catalog.setdefault(row["part"], {})[row["name"]] = row["definition"]
    return catalog


async def list_broken_indexes(session: Session) -> list[tuple[str, str]]:
    """Return the table and the name of each invalid index."""
    return [(row["table_name"], row["index_name"]) for row in await session.fetch("list_broken_indexes")]
