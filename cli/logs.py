"""Log formats: text, one JSON object per line, or systemd's journal. Each record of a job names the job."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from awa_py.observability.logs import FIELDS, JobFilter
from awa_py.text import escape, escape_json

from . import journal

# The attributes of every record. All others come from the logging call (`extra`) or from the filter.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "job"}
_FIELD_NAMES = {"job_kind": "kind"}
INDENT = "  "


class LogFormat(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    JOURNAL = "journal"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class TextFormatter(logging.Formatter):
    """Format time, level, logger, message and job on a line, and the exception below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        # Further lines are indented: a message of a handler must not look like another record.
        return escape(super().format(record)).replace("\n", f"\n{INDENT}")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        job = getattr(record, "job", "")
        return f"{line} {job}" if job else line


class JsonFormatter(logging.Formatter):
    """Format time, level, logger, message, job, `extra` and exception as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(entry, ensure_ascii=False, default=str))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record besides its message: first the job's, then those of `extra`."""
    attributes = record.__dict__
    job = {_FIELD_NAMES.get(name, name): attributes[name] for name in FIELDS if attributes.get(name) is not None}
    return job | {name: value for name, value in attributes.items() if name not in (*_STANDARD, *FIELDS, *job)}


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Send the records of all loggers, including the app's, to standard error or to the journal."""
    logging.basicConfig(level=level.upper(), handlers=[_handler(log_format)], force=True)


def _handler(log_format: LogFormat) -> logging.Handler:
    stderr_handler = logging.StreamHandler(sys.stderr)
    stderr_handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    handler: logging.Handler = stderr_handler
    if log_format is LogFormat.JOURNAL or (log_format is LogFormat.AUTO and journal.is_stderr()):
        handler = journal.JournalHandler(fields_of, fallback=stderr_handler)
    handler.addFilter(JobFilter())
    return handler
