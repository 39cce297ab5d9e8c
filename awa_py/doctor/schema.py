"""Checks of the schema: its version, its objects, and the partitions of the coming days."""

import json
import re
from functools import cache
from importlib.resources import files

from awa_py.db.installed import list_applied, version_of
from awa_py.db.migrations import needed_version, refuse_incompatible
from awa_py.db.schema import Schema
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.errors import SchemaForeign, SchemaTooNew
from awa_py.maintenance.cleanup import DAYS_AHEAD
from awa_py.store import catalog, partitions
from awa_py.store.catalog import Catalog
from awa_py.store.partitions import DayPartition
from awa_py.text import count

ENOUGH_DAYS = DAYS_AHEAD - 1  # the leader creates the last one in the first minutes after midnight
FEW_DAYS = 2
MIGRATE = "`awa migrate`"
RESTORE = "Restore its definition (`awa migrate --sql --from 0` prints it), and find out what changed it."


async def check_version(context: CheckContext, findings: Findings) -> None:
    """Check that the schema has a version that this program can use."""
    schema = context.database.schema
    name, needed = schema.name, needed_version()
    try:
        applied = await list_applied(context.connection, schema)
        refuse_incompatible(applied, schema)
    except SchemaForeign:
        findings.problem(name, "It belongs to another program.", "Choose another --schema (AWA_SCHEMA).")
        return
    except SchemaTooNew as error:
        findings.problem(name, f"This program cannot use it: {error}.", "Upgrade awa on this host.")
        return
    here = version_of(applied)
    if here == 0:
        findings.problem(name, f'awa is not installed in schema "{name}".', f"{MIGRATE}; or choose another --schema.")
    elif here < needed:
        findings.problem(name, f"It has version {here}; this program needs {needed}. Workers do not start.", MIGRATE)
    elif here > needed:
        findings.notice(
            name,
            f"It has version {here}; this program supports {needed}, and the migrations since are compatible with it.",
            "Upgrade awa on this host when it is convenient.",
        )
    findings.ok(f"version {here}")


async def check_objects(context: CheckContext, findings: Findings) -> None:
    """Check that all tables, columns, indexes, constraints, triggers and functions match the migrations."""
    if context.version != needed_version():
        findings.notice(None, "Not checked: the schema's version differs from this program's.", MIGRATE)
        return
    schema = context.database.schema
    expected, found = snapshot(), await read_catalog(context)
    missing_tables = expected["table"].keys() - found.get("table", {}).keys()
    for part, definitions in expected.items():
        existing = found.get(part, {})
        for name, definition in definitions.items():
            if _table_of(part, name, definition) in missing_tables:
                continue  # its table is reported
            if name not in existing:
                _report_missing(findings, schema, part, name, definition)
            elif existing[name] != (schema.qualify(definition) if part == "function" else definition):
                findings.problem(f"{part} {name}", "Its definition differs from the migrations.", RESTORE)
    _report_foreign_objects(findings, expected, found)
    for table, index in await catalog.list_broken_indexes(context.session):
        action = "DROP" if re.search(r"_cc(new|old)\d*$", index) else "REINDEX"  # left behind by a failed REINDEX
        findings.problem(
            f"index {index}",
            f"It is invalid: its creation failed or is still running, and queries on {table} cannot use it.",
            f'{action} INDEX CONCURRENTLY "{schema.name}".{index};',
        )
    relations, indexes, functions = (len(expected[part]) for part in ("table", "index", "function"))
    findings.ok(f"{relations} relations, {indexes} indexes and {functions} functions match")


async def check_partitions(context: CheckContext, findings: Findings) -> None:
    """Check the partitions of completed jobs for today and the coming days."""
    schema = context.database.schema
    days = await partitions.list_day_partitions(context.session, days_ahead=DAYS_AHEAD)
    attached = [day for day in days if day.attached]
    last = max((day.day for day in attached), default=None)
    for day in days:
        if not day.attached and (day == days[0] or day.exists or (last is not None and day.day < last)):
            _report_gap(findings, schema, day)
    ahead = 0 if last is None else (last - days[0].day).days
    if ahead < ENOUGH_DAYS:
        report = findings.problem if ahead < FEW_DAYS else findings.warning
        report(
            "completed",
            f"Partitions exist for {count(ahead, 'day')} ahead, not {DAYS_AHEAD}: the leader did not create them.",
            "`awa leader` shows whether there is a leader; `awa maintenance --once cleanup` creates them now.",
        )
    if not await partitions.has_default_partition(context.session):
        findings.problem(
            "completed_default",
            "The default partition is missing: on a day without its own partition, no job can complete.",
            schema.qualify(
                "CREATE TABLE IF NOT EXISTS awa.completed_default (LIKE awa.completed INCLUDING DEFAULTS); "
                "ALTER TABLE awa.completed ATTACH PARTITION awa.completed_default DEFAULT;"
            ),
        )
    elif stray := await partitions.find_stray_completed_job(context.session):
        findings.warning(
            "completed_default",
            f"It contains completed jobs, e.g. of {stray}: that day had no partition when they ended.",
            "Nothing is lost: the leader deletes them after their retention. Make sure that there is always a leader.",
        )
    findings.ok(f"{count(ahead, 'day')} ahead, none missing")


async def read_catalog(context: CheckContext) -> Catalog:
    """Return the catalog with the schema renamed to `awa`, except in the bodies of functions."""
    quoted = await context.connection.fetchval("SELECT quote_ident($1)", context.database.schema.name)
    pattern = re.compile(rf'(?<![\w"]){re.escape(quoted)}\.(?=[\w"])')
    return {
        part: {
            pattern.sub("awa.", name) if part == "function" else name: (
                definition if part == "function" else pattern.sub("awa.", definition)
            )
            for name, definition in definitions.items()
        }
        for part, definitions in (await catalog.list_catalog(context.session)).items()
    }


@cache
def snapshot() -> Catalog:
    """Return the schema as the migrations create it. `make snapshot` writes the file, and a test compares it."""
    found: Catalog = json.loads((files("awa_schema") / "snapshot.json").read_text(encoding="utf-8"))
    return found


def _table_of(part: str, name: str, definition: str) -> str | None:
    """Return the table that an object belongs to; None for tables and functions."""
    if part == "index":
        match = re.search(r" ON (?:ONLY )?awa\.(\w+) ", definition)
        return match and match[1]
    return name.partition(".")[0] if part in ("column", "constraint", "trigger") else None


def _report_missing(findings: Findings, schema: Schema, part: str, name: str, definition: str) -> None:
    says, do = "It is missing.", RESTORE
    if part == "index":
        says, do = "It is missing: statements scan whole tables instead.", _concurrently(definition)
    elif part == "constraint":
        table, _, constraint = name.partition(".")
        do = f"ALTER TABLE awa.{table} ADD CONSTRAINT {constraint} {definition};"
    elif part == "trigger":
        do = f"{definition};"
    findings.problem(f"{part} {name}", says, schema.qualify(do))


def _concurrently(definition: str) -> str:
    """Return a statement that creates the index without blocking writes, which partitioned tables do not support."""
    if " ON ONLY " in definition:
        return definition.replace(" ON ONLY ", " ON ") + ";"
    return re.sub(r" INDEX ", " INDEX CONCURRENTLY ", definition, count=1) + ";"


def _report_foreign_objects(findings: Findings, expected: Catalog, found: Catalog) -> None:
    """Report indexes and triggers on awa's tables that are not awa's. They are allowed, but slow every job down."""
    for part in ("index", "trigger"):
        for name in found.get(part, {}).keys() - expected.get(part, {}).keys():
            findings.notice(
                f"{part} {name}", "It is not part of awa and adds a cost to every job.", "Drop it unless you need it."
            )


def _report_gap(findings: Findings, schema: Schema, day: DayPartition) -> None:
    says = f"Completed jobs of {day.day} have no partition and go to the default one."
    if not day.exists:
        findings.problem(
            f"partition {day.name}",
            says,
            schema.qualify(f"SELECT awa.create_day_partitions('completed', {DAYS_AHEAD});"),
        )
        return
    following = day.day.toordinal() + 1
    findings.problem(
        f"partition {day.name}",
        f"{says} The table exists but is not attached.",
        schema.qualify(
            f"ALTER TABLE awa.completed ATTACH PARTITION awa.{day.name} "
            f"FOR VALUES FROM ('{day.day} 00:00+00') TO ('{day.day.fromordinal(following)} 00:00+00');"
        ),
    )
