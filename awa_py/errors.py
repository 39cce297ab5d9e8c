"""Everything that awa raises on purpose.

AwaError
├── ConfigError             a setting that cannot work
│   └── SessionNotKept      a pooler stands where a session of one's own is needed: set AWA_DIRECT_URL
├── InvalidDuration         not a duration: "10 parsecs"
├── InvalidJob              a job that cannot be enqueued: its name, arguments, options
│   └── InvalidArguments    arguments that do not fit the handler's signature
├── InvalidSchedule         a cron expression or timezone that cannot fire
├── UnknownKind             no handler is registered under that name
├── UnknownSchedule         no cron schedule of that name
├── UnknownQueue            no queue of that name: neither settings nor jobs
├── UnknownRateLimit        no rate limit of that name: set it first
├── UnknownWorker           no worker of that name, or more than one
├── UnknownRoute            no route has that pattern
├── JobNotFound             no job has that id (any more)
├── JobFailed               the awaited job ended without a result
│   └── JobCancelled        … because somebody cancelled it
├── ResultTimeout           the awaited job did not end in time
├── HandlerStopped          a handler in a thread goes on to wait, though it has been told to stop
├── SchemaError             the database's schema is not the one this program needs
│   ├── SchemaMissing       it was never migrated, or is older: run `awa migrate`
│   └── SchemaTooNew        it is newer than this program: upgrade the program
├── DatabaseUnavailable     the database cannot be reached
├── NotPermitted            the login lacks a right: make it a member of one of awa's roles
├── AppNotFound             APP does not name an awa.App
└── EmbeddedError           the embedded PostgreSQL cannot start
"""


class AwaError(Exception):
    """The root of every error that awa raises on purpose."""


class ConfigError(AwaError, ValueError):
    """A setting that cannot work."""


class SessionNotKept(ConfigError):
    """A transaction pooler stands where a session of one's own is needed."""


class InvalidDuration(AwaError, ValueError):
    """A value that does not read as a duration."""


class InvalidJob(AwaError, ValueError):
    """A job that cannot be enqueued."""


class InvalidArguments(InvalidJob):
    """Arguments that do not fit the handler's signature."""


class InvalidSchedule(AwaError, ValueError):
    """A cron expression or a timezone that cannot fire."""


class UnknownKind(AwaError, LookupError):
    """No handler is registered under that name."""


class UnknownSchedule(AwaError, LookupError):
    """No cron schedule of that name exists."""


class UnknownQueue(AwaError, LookupError):
    """No queue of that name has settings or jobs."""


class UnknownRateLimit(AwaError, LookupError):
    """No rate limit of that name exists."""


class UnknownWorker(AwaError, LookupError):
    """No worker of the registry has that name, or more than one."""


class UnknownRoute(AwaError, LookupError):
    """No route has that pattern."""


class JobNotFound(AwaError, LookupError):
    """No job has that id (any more)."""


class JobFailed(AwaError):
    """The awaited job ended without a result."""


class JobCancelled(JobFailed):
    """The awaited job was cancelled."""


class ResultTimeout(AwaError, TimeoutError):
    """The awaited job did not end in time."""


class HandlerStopped(AwaError):
    """A handler was told to stop: there is no point in waiting for anything."""


class SchemaError(AwaError):
    """The database's schema is not the one that this program needs."""


class SchemaMissing(SchemaError):
    """The schema was never migrated, or is older than this program."""


class SchemaTooNew(SchemaError):
    """The schema is newer than this program."""


class DatabaseUnavailable(AwaError):
    """The database cannot be reached."""


class NotPermitted(AwaError):
    """The login lacks a right that one of awa's roles has."""


class AppNotFound(AwaError):
    """APP does not name an awa.App."""


class EmbeddedError(AwaError):
    """The embedded PostgreSQL cannot start."""
