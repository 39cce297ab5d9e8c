"""Rows of the database as values of the library."""

import json
from collections.abc import Mapping
from typing import Any

from awa_py.db.columns import JSON_COLUMNS
from awa_py.db.types import Record
from awa_py.model.job import Job, State


def job_from(row: Record | Mapping[str, Any]) -> Job:
    """Return the Job of a row of `awa.jobs` whose JSON columns are text. Missing columns have the defaults of Job."""
    values: dict[str, Any] = dict(row)
    values["state"] = State(values["state"])
    for column in JSON_COLUMNS:
        text = values.get(column)
        values[column] = None if text is None else json.loads(text)
    values["errors"] = values["errors"] or []
    values["metadata"] = values["metadata"] or {}
    values["tags"] = values["tags"] or []
    return Job(**values)
