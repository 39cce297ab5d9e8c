"""Logging: for people, as a JSON object a line, or to systemd's journal. Every line says which job it is about."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from awa_py.observability.logs import FIELDS, JobFilter

from . import journal

# What a record has by itself: the rest was given by the logging call (`extra`), or by the filter.
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "job"}
_FIELD_NAMES = {"job_kind": "kind"}


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
    """time, level, logger, message, and the job where a handler wrote it; the exception below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        job = getattr(record, "job", "")
        return f"{line} {job}" if job else line


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, the job, what the call gave as `extra`, and the exception where there is one."""

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
        return json.dumps(entry, ensure_ascii=False, default=str)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says beside its message: the job first, then what the call gave."""
    given = record.__dict__
    job = {_FIELD_NAMES.get(name, name): given[name] for name in FIELDS if given.get(name) is not None}
    return job | {name: value for name, value in given.items() if name not in (*_OWN, *FIELDS, *job)}


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Sends every logger's words, those of the app included, to standard error or to the journal."""
    logging.basicConfig(level=level.upper(), handlers=[_handler(log_format)], force=True)


def _handler(log_format: LogFormat) -> logging.Handler:
    on_stderr = logging.StreamHandler(sys.stderr)
    on_stderr.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    handler: logging.Handler = on_stderr
    if log_format is LogFormat.JOURNAL or (log_format is LogFormat.AUTO and journal.is_stderr()):
        handler = journal.JournalHandler(fields_of, otherwise=on_stderr)
    handler.addFilter(JobFilter())
    return handler
