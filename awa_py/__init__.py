"""awa: a job queue that needs nothing but PostgreSQL."""

from awa_py.app import App, JobType
from awa_py.config import Settings
from awa_py.context import BatchJob, Context
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
from awa_py.job import Job, NewJob, State
from awa_py.logs import JobFilter
from awa_py.options import Unique
from awa_py.outcome import Cancel, Fail, RateLimited, Retry, Snooze, Throttled
from awa_py.timeline import Event
from awa_py.worker.name import WorkerName

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
    "JobFailed",
    "JobFilter",
    "JobNotFound",
    "JobType",
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
