"""The schema: its version, everything that the migrations made, and the partitions of the days to come."""

import json
import re
from functools import cache
from importlib.resources import files

from awa_py.db.migrations import current_version, needed_version
from awa_py.db.schema import Schema
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.maintenance.cleanup import DAYS_AHEAD
from awa_py.store import catalog, partitions
from awa_py.store.catalog import Catalog
from awa_py.store.partitions import DayPartition
from awa_py.text import count

ENOUGH_DAYS = DAYS_AHEAD - 1  # the last one is made in the first minutes after midnight
FEW_DAYS = 2
MIGRATE = "`awa migrate`"
MEND = "Find out who changed it; `awa migrate --sql` prints the schema as it should be."


async def check_version(context: CheckContext, notes: Findings) -> None:
    """The schema is the one that this program needs."""
    schema = context.database.schema
    name, here, needed = schema.name, await current_version(context.connection, schema), needed_version()
    if here == 0:
        notes.problem(name, f'The database has no schema "{name}" of awa.', f"{MIGRATE}; or name another --schema.")
    elif here < needed:
        notes.problem(name, f"It has version {here}, and this program needs {needed}: workers do not start.", MIGRATE)
    elif here > needed:
        notes.problem(name, f"It has version {here}, and this program knows {needed}.", "Upgrade awa on this host.")
    notes.ok(f"version {here}")


async def check_objects(context: CheckContext, notes: Findings) -> None:
    """Tables, columns, indexes, constraints, triggers and functions are there, and as the migrations made them."""
    if context.version != needed_version():
        notes.notice(None, "Not compared: the schema has another version than this program.", MIGRATE)
        return
    schema = context.database.schema
    expected, found = snapshot(), await read_catalog(context)
    gone = expected["table"].keys() - found.get("table", {}).keys()
    for part, definitions in expected.items():
        there = found.get(part, {})
        for name, definition in definitions.items():
            if _table_of(part, name, definition) in gone:
                continue  # with its table, which is named
            if name not in there:
                _note_missing(notes, schema, part, name, definition)
            elif there[name] != (schema.qualify(definition) if part == "function" else definition):
                notes.problem(f"{part} {name}", "It is not as the migrations made it.", MEND)
    _note_strangers(notes, expected, found)
    for table, index in await catalog.list_broken_indexes(context.session):
        mend = "DROP" if re.search(r"_cc(new|old)\d*$", index) else "REINDEX"  # what a broken REINDEX left behind
        notes.problem(
            f"index {index}",
            f"It is not valid: its building failed or goes on, and queries on {table} cannot use it.",
            f'{mend} INDEX CONCURRENTLY "{schema.name}".{index};',
        )
    relations, indexes, functions = (len(expected[part]) for part in ("table", "index", "function"))
    notes.ok(f"{relations} relations, {indexes} indexes and {functions} functions are as they should be")


async def check_partitions(context: CheckContext, notes: Findings) -> None:
    """Completed jobs have somewhere to go, today and in the days to come."""
    schema = context.database.schema
    days = await partitions.list_day_partitions(context.session, days_ahead=DAYS_AHEAD)
    attached = [day for day in days if day.attached]
    last = max((day.day for day in attached), default=None)
    for day in days:
        if not day.attached and (day == days[0] or day.exists or (last is not None and day.day < last)):
            _note_gap(notes, schema, day)
    ahead = 0 if last is None else (last - days[0].day).days
    if ahead < ENOUGH_DAYS:
        note = notes.problem if ahead < FEW_DAYS else notes.warning
        note(
            "completed",
            f"Partitions are there for {count(ahead, 'day')} ahead, instead of {DAYS_AHEAD}: "
            "the leader could not make them.",
            "`awa leader` shows whether somebody leads; `awa maintenance --once cleanup` makes them now.",
        )
    if not await partitions.has_default_partition(context.session):
        notes.problem(
            "completed_default",
            "The default partition is missing: where a day has no partition of its own, no job can complete.",
            schema.qualify(
                "CREATE TABLE IF NOT EXISTS awa.completed_default (LIKE awa.completed INCLUDING DEFAULTS); "
                "ALTER TABLE awa.completed ATTACH PARTITION awa.completed_default DEFAULT;"
            ),
        )
    elif stray := await partitions.find_stray_completed_job(context.session):
        notes.warning(
            "completed_default",
            f"It holds completed jobs, for example of {stray}: there was no partition of that day when they ended.",
            "Nothing is lost: the leader deletes them after their retention. See that somebody leads at all times.",
        )
    notes.ok(f"{count(ahead, 'day')} ahead, none missing")


async def read_catalog(context: CheckContext) -> Catalog:
    """What is there, with the schema under its usual name; functions as they are."""
    quoted = await context.connection.fetchval("SELECT quote_ident($1)", context.database.schema.name)
    pattern = re.compile(rf'(?<![\w"]){re.escape(quoted)}\.(?=[\w"])')
    return {
        part: {
            name: definition if part == "function" else pattern.sub("awa.", definition)
            for name, definition in definitions.items()
        }
        for part, definitions in (await catalog.list_catalog(context.session)).items()
    }


@cache
def snapshot() -> Catalog:
    """The schema as the migrations make it; `make snapshot` writes it anew, and a test compares."""
    found: Catalog = json.loads((files("awa_schema") / "snapshot.json").read_text(encoding="utf-8"))
    return found


def _table_of(part: str, name: str, definition: str) -> str | None:
    """The table that it belongs to, where it is not one itself."""
    if part == "index":
        match = re.search(r" ON (?:ONLY )?awa\.(\w+) ", definition)
        return match and match[1]
    return name.partition(".")[0] if part in ("column", "constraint", "trigger") else None


def _note_missing(notes: Findings, schema: Schema, part: str, name: str, definition: str) -> None:
    says, do = "It is missing.", MEND
    if part == "index":
        says, do = "It is missing: statements read whole tables instead.", _without_a_stop(definition)
    elif part == "constraint":
        table, _, constraint = name.partition(".")
        do = f"ALTER TABLE awa.{table} ADD CONSTRAINT {constraint} {definition};"
    elif part == "trigger":
        do = f"{definition};"
    notes.problem(f"{part} {name}", says, schema.qualify(do))


def _without_a_stop(definition: str) -> str:
    """The statement that makes an index while everybody works on; for a partitioned table there is none."""
    if " ON ONLY " in definition:
        return definition.replace(" ON ONLY ", " ON ") + ";"
    return re.sub(r" INDEX ", " INDEX CONCURRENTLY ", definition, count=1) + ";"


def _note_strangers(notes: Findings, expected: Catalog, found: Catalog) -> None:
    """Somebody's own indexes and triggers on our tables: allowed, and paid for with every job."""
    for part in ("index", "trigger"):
        for name in found.get(part, {}).keys() - expected.get(part, {}).keys():
            notes.notice(
                f"{part} {name}", "It is not of awa, and costs something with every job.", "Drop it unless you need it."
            )


def _note_gap(notes: Findings, schema: Schema, day: DayPartition) -> None:
    says = f"Completed jobs of {day.day} have no partition of their own: they go to the default one."
    if not day.exists:
        notes.problem(
            f"partition {day.name}",
            says,
            schema.qualify(f"SELECT awa.create_day_partitions('completed', {DAYS_AHEAD});"),
        )
        return
    following = day.day.toordinal() + 1
    notes.problem(
        f"partition {day.name}",
        f"{says} The table is there, but not attached.",
        schema.qualify(
            f"ALTER TABLE awa.completed ATTACH PARTITION awa.{day.name} "
            f"FOR VALUES FROM ('{day.day} 00:00+00') TO ('{day.day.fromordinal(following)} 00:00+00');"
        ),
    )
