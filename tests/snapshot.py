"""Write schema/snapshot.json (`make snapshot`): the objects that the migrations create, which `awa doctor` compares."""

import asyncio
import json
from pathlib import Path

from awa_py import Settings
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.installed import current_version
from awa_py.db.schema import Schema
from awa_py.doctor.context import LONG_TRANSACTION, CheckContext, connect
from awa_py.doctor.schema import read_catalog
from awa_py.embedded import EmbeddedPostgres
from awa_py.store.catalog import Catalog

FILE = Path(__file__).parents[1] / "schema" / "snapshot.json"


def text(catalog: Catalog) -> str:
    return json.dumps(catalog, indent=1, ensure_ascii=False) + "\n"


async def take(database: Database) -> Catalog:
    """Return the objects of a database's schema. The schema's name in functions is as in the migrations."""
    connection = await connect(database)
    try:
        context = CheckContext(
            database=database,
            settings=Settings(),
            connection=connection,
            version=await current_version(connection, database.schema),
            long_transaction=LONG_TRANSACTION,
        )
        async with context.read_only():
            catalog = await read_catalog(context)
    finally:
        await connection.close()
    catalog["function"] = {name: body.replace('"awa".', "awa.") for name, body in catalog["function"].items()}
    return catalog


async def _read_new_database(url: str) -> Catalog:
    database = Database(url, Schema())
    await migrations.migrate(database)
    return await take(database)


if __name__ == "__main__":
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        FILE.write_text(text(asyncio.run(_read_new_database(server.url))), encoding="utf-8")
