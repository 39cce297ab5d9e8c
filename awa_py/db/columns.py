"""What SQL files share: the lists of a job's columns, and the settings of functions.

SQL files, those of the schema too, write placeholders instead of lists, so that a new job column is one field of `Job`
and one column in `schema/0001_baseline/02_job_tables.sql`:

- `{job with payloads}`: the columns of the view `awa.jobs`, which are the fields of `Job`
- `{shown}`: the same with JSON as text, so that a connection's own JSON codec does not matter, and with readable times
- `{carried}`: the columns that a job takes unchanged from one table to the next
- `{carried without rescues, progress}`: the same except some that the statement sets itself
- `{details of TABLE}`: the columns of a job that a claim returns as one JSON array, besides those of its answer
- `{args}`: the arguments of a job, from its row or from `awa.payloads`
- `{max inline bytes}`: arguments of more bytes go to `awa.payloads`
- `{stable plans}`: the settings of functions that read tables, so that the caller's settings do not change their plans
"""

import re
from dataclasses import fields

from awa_py.db.database import STABLE_PLAN_SETTINGS
from awa_py.model.job import Job

JOB = tuple(field.name for field in fields(Job) if field.name != "is_new")
JSON_COLUMNS = ("args", "errors", "progress", "result", "metadata")
_SHOWN = {
    **dict.fromkeys(JSON_COLUMNS, "{name}::pg_catalog.text"),
    **{name: "awa.readable_time({name})" for name in JOB if name.endswith("_at")},
    "timeout": "awa.readable_duration(timeout)",
}

# The columns that a transition changes, or that not every table has: each statement writes them itself.
_NOT_CARRIED = (
    *("state", "run_at", "errors", "attempt", "lease", "worker_id", "attempted_at", "finalized_at", "heartbeat_at"),
    *("deadline_at", "cancel_requested_at", "result"),
)
CARRIED = (*(name for name in JOB if name not in _NOT_CARRIED), "expires_at")

# The answer of a claim has these columns. The others are a JSON array, which is read only if a handler asks for them.
_CLAIMED = ("id", "kind", "priority", "args", "parent_id", "timeout", "expires_at")
DETAILS = (*(name for name in CARRIED if name not in _CLAIMED), "run_at", "errors")

# Measured: with 500 bytes, a payload costs as much server CPU as it saves, with 1000 it saves 5 %, and half of the WAL.
MAX_INLINE_BYTES = 1_000

# A sub-select is only run if `args` is NULL, and always uses the primary key. A join could become a scan.
ARGS = "coalesce(args, (SELECT payloads.args FROM awa.payloads WHERE payloads.job_id = id))"

STABLE_PLANS = " ".join(f"SET {name} = {value}" for name, value in STABLE_PLAN_SETTINGS.items())


def fill_placeholders(sql: str) -> str:
    """Replace the placeholders with what they stand for."""
    sql = re.sub(r"\{carried without ([\w, ]+)\}", lambda found: _carried_without(found[1].split(", ")), sql)
    sql = re.sub(r"\{details of ([\w()]+)\}", lambda found: ", ".join(f"{found[1]}.{name}" for name in DETAILS), sql)
    return (
        sql.replace("{carried}", ", ".join(CARRIED))
        .replace("{job with payloads}", ", ".join(f"{ARGS} AS args" if name == "args" else name for name in JOB))
        .replace("{args}", ARGS)
        .replace("{max inline bytes}", str(MAX_INLINE_BYTES))
        .replace(
            "{shown}",
            ", ".join(f"{_SHOWN[name].format(name=name)} AS {name}" if name in _SHOWN else name for name in JOB),
        )
        .replace("{stable plans}", STABLE_PLANS)
    )


def _carried_without(names: list[str]) -> str:
    return ", ".join(name for name in CARRIED if name not in names)
