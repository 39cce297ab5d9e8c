"""Convert rows to jobs, whatever the rows contain: an operator must be able to look at each of them."""

import json
from collections.abc import Mapping
from typing import Any

from awa_py.connections import Record
from awa_py.db.columns import JOB, JSON_COLUMNS
from awa_py.model.job import Job, State

_FIELDS = frozenset(JOB)


def job_from(row: Record | Mapping[str, Any], state: State | None = None) -> Job:
    """Return a row of `awa.jobs`, or of a job table with its `state`, as a Job. JSON columns are text."""
    values = dict(row.items())
    for column in JSON_COLUMNS:
        values[column] = load_json(values.get(column))
    return job_from_values(values, state or State(row["state"]))


def job_from_values(values: Mapping[str, Any], state: State) -> Job:
    """Return a job from its columns, of which JSON columns have been read."""
    fields = {name: value for name, value in values.items() if name in _FIELDS}
    fields["state"] = state
    fields["errors"] = _entries(values.get("errors"))
    fields["metadata"] = values.get("metadata") or {}
    fields["tags"] = values.get("tags") or []
    return Job(**fields)


def load_json(text: str | None) -> Any:
    """Return the value, or the text itself if Python cannot represent it: nested too deeply, or a number too long."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _entries(errors: Any) -> list[dict[str, Any]]:
    """Return the errors as a list of objects. What is something else becomes the text of an error."""
    entries = errors if isinstance(errors, list) else [errors] if errors is not None else []
    return [entry if isinstance(entry, dict) else {"error": json.dumps(entry)} for entry in entries]
