"""Convert rows to jobs."""

import json
from collections.abc import Mapping
from typing import Any

from awa_py.db.columns import JOB, JSON_COLUMNS
from awa_py.db.types import Record
from awa_py.model.job import Job, State

_FIELDS = frozenset(JOB)


def job_from(row: Record | Mapping[str, Any], state: State | None = None) -> Job:
    """Return a row of `awa.jobs`, or of a job table with its `state`, as a Job. JSON columns are text."""
    values = {name: value for name, value in row.items() if name in _FIELDS}
    values["state"] = state or State(row["state"])
    for column in JSON_COLUMNS:
        text = values.get(column)
        values[column] = None if text is None else json.loads(text)
    values["errors"] = values["errors"] or []
    values["metadata"] = values["metadata"] or {}
    values["tags"] = values["tags"] or []
    return Job(**values)
