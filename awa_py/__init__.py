"""awa: a job queue that needs nothing but PostgreSQL."""

from awa_py.app import App
from awa_py.definitions import JobDefinition
from awa_py.errors import (
    AppNotFound,
    AwaError,
    ConfigError,
    DatabaseUnavailable,
    EmbeddedError,
    HandlerStopped,
    InvalidArguments,
    InvalidDuration,
    InvalidJob,
    InvalidSchedule,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotPermitted,
    ResultTimeout,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SessionNotKept,
    UnknownKind,
    UnknownQueue,
    UnknownRateLimit,
    UnknownRoute,
    UnknownSchedule,
    UnknownWorker,
)
from awa_py.model.context import BatchJob, Context
from awa_py.model.job import Job, NewJob, State
from awa_py.model.options import JobOptions, Unique
from awa_py.model.outcomes import Cancel, Fail, RateLimited, Retry, Snooze, Throttled
from awa_py.model.worker_name import WorkerName
from awa_py.observability.history import Event
from awa_py.observability.logs import JobFilter
from awa_py.settings import Settings

__all__ = [
    "App",
    "AppNotFound",
    "AwaError",
    "BatchJob",
    "Cancel",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "EmbeddedError",
    "Event",
    "Fail",
    "HandlerStopped",
    "InvalidArguments",
    "InvalidDuration",
    "InvalidJob",
    "InvalidSchedule",
    "Job",
    "JobCancelled",
    "JobDefinition",
    "JobFailed",
    "JobFilter",
    "JobNotFound",
    "JobOptions",
    "NewJob",
    "NotPermitted",
    "RateLimited",
    "ResultTimeout",
    "Retry",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SessionNotKept",
    "Settings",
    "Snooze",
    "State",
    "Throttled",
    "Unique",
    "UnknownKind",
    "UnknownQueue",
    "UnknownRateLimit",
    "UnknownRoute",
    "UnknownSchedule",
    "UnknownWorker",
    "WorkerName",
]
