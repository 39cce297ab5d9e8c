"""Rows of the database as values of the library."""

import json
from typing import Any

from awa_py.db.types import Record
from awa_py.model.job import Job, State

_JSON_COLUMNS = ("args", "errors", "progress", "result", "metadata")


def job_from(row: Record) -> Job:
    """A row of `awa.jobs`, its JSON columns as text, as a Job."""
    values: dict[str, Any] = dict(row)
    values["state"] = State(values["state"])
    for column in _JSON_COLUMNS:
        text = values[column]
        values[column] = None if text is None else json.loads(text)
    values["errors"] = values["errors"] or []
    values["metadata"] = values["metadata"] or {}
    values["tags"] = values["tags"] or []
    return Job(**values)
