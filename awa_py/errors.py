"""The errors that awa raises.

AwaError
├── ConfigError             an invalid setting or declaration
│   └── SessionNotKept      a pooler is in the way of a session: set AWA_DIRECT_URL
├── InvalidDuration         not a duration: "10 parsecs"
├── InvalidJob              a job that cannot be enqueued: its kind, arguments or options are wrong
│   └── InvalidArguments    arguments that do not fit the handler's signature
├── InvalidSchedule         a cron expression or timezone that cannot fire
├── ScheduleDeclared        a cron schedule that the code declares: operators cannot change or delete it
├── UnknownKind             no handler is registered under that name
├── UnknownSchedule         no cron schedule of that name
├── UnknownQueue            no queue of that name has settings or jobs
├── UnknownRateLimit        no rate limit of that name: create it with `awa rate set`
├── UnknownWorker           no worker of that name, or more than one
├── UnknownRoute            no route has that pattern
├── JobNotFound             no job has that id, or it was deleted after its retention
├── JobFailed               the awaited job ended without a result
│   ├── JobCancelled        … because it was cancelled
│   └── ChildFailed         … and its parent waited for it
├── JobEnded                a signal to a job that has ended
├── TooManySignals          a signal to a job that has not taken the last 1000
├── ReplayMismatch          a durable job makes another call under a recorded name, or with other arguments
├── InvalidStep             a durable call that cannot be made or recorded: its name, its result or its number
├── StepFailed              the recorded error of a step, if its class is not known
├── StepTimeout             a step took longer than its timeout
├── ResultTimeout           the awaited job did not end in time
├── HandlerStopped          a handler in a thread waits for something although it was told to stop
├── SchemaError             the database's schema does not fit this version of awa
│   ├── SchemaMissing       it does not exist or is older: run `awa migrate`
│   ├── SchemaTooNew        it is newer, and not compatible with this version: upgrade awa
│   └── SchemaForeign       it belongs to another program: choose another name
├── DatabaseUnavailable     the database cannot be reached
│   ├── DatabaseMissing     the server has no database of that name
│   ├── LoginRefused        the server refuses the login: a wrong password, an unknown role
│   └── StaleServer         the server is a former primary, which must not be written any more
├── NotPermitted            the login lacks a privilege: GRANT it one of awa's roles
├── AppNotFound             APP does not name an awa.App
└── EmbeddedError           the embedded PostgreSQL cannot start
"""


class AwaError(Exception):
    """The base class of all errors of awa."""


class ConfigError(AwaError, ValueError):
    """An invalid setting or declaration."""


class SessionNotKept(ConfigError):
    """A connection that needs its own session goes through a transaction pooler."""


class InvalidDuration(AwaError, ValueError):
    """A value that is not a duration."""


class InvalidJob(AwaError, ValueError):
    """A job that cannot be enqueued."""


class InvalidArguments(InvalidJob):
    """Arguments that do not fit the handler's signature."""


class InvalidSchedule(AwaError, ValueError):
    """A cron expression or a timezone that cannot fire."""


class ScheduleDeclared(AwaError):
    """The code declares this cron schedule, so operators cannot change or delete it."""


class UnknownKind(AwaError, LookupError):
    """No handler is registered under that name."""


class UnknownSchedule(AwaError, LookupError):
    """No cron schedule of that name exists."""


class UnknownQueue(AwaError, LookupError):
    """No queue of that name has settings or jobs."""


class UnknownRateLimit(AwaError, LookupError):
    """No rate limit of that name exists."""


class UnknownWorker(AwaError, LookupError):
    """No worker has that name, or more than one."""


class UnknownRoute(AwaError, LookupError):
    """No route has that pattern."""


class JobNotFound(AwaError, LookupError):
    """No job has that id, or it was deleted after its retention."""


class JobFailed(AwaError):
    """The awaited job ended without a result."""


class JobCancelled(JobFailed):
    """The awaited job was cancelled."""


class ChildFailed(JobFailed):
    """A child of a durable job failed, or was cancelled."""

    def __init__(self, job_id: int, kind: str, error: str) -> None:
        super().__init__(f"child {job_id} ({kind}) failed: {error}")
        self.job_id = job_id
        self.kind = kind
        self.error = error

    def __reduce__(self) -> tuple[type["ChildFailed"], tuple[int, str, str]]:
        return ChildFailed, (self.job_id, self.kind, self.error)


class JobEnded(AwaError):
    """A signal to a job that has ended."""


class TooManySignals(AwaError):
    """A signal to a job that has not taken the last 1000."""


class ReplayMismatch(AwaError):
    """A durable job makes another call than it did when the call was recorded. The job fails at once."""


class InvalidStep(AwaError, ValueError):
    """A durable call that cannot be made or recorded. The job fails at once: the next attempt would do the same."""


class StepFailed(AwaError):
    """The recorded error of a step whose class is not known to this process."""


class StepTimeout(AwaError, TimeoutError):
    """A step took longer than its timeout."""


class ResultTimeout(AwaError, TimeoutError):
    """The awaited job did not end in time."""


class HandlerStopped(AwaError):
    """A handler in a thread waits for something although it was told to stop."""


class SchemaError(AwaError):
    """The database's schema does not fit this version of awa."""


class SchemaMissing(SchemaError):
    """The schema does not exist, or is older than this version of awa."""


class SchemaTooNew(SchemaError):
    """The schema is newer than this version of awa, and not compatible with it."""


class SchemaForeign(SchemaError):
    """The schema belongs to another program."""


class DatabaseUnavailable(AwaError):
    """The database cannot be reached."""


class DatabaseMissing(DatabaseUnavailable):
    """The server has no database of that name."""


class LoginRefused(DatabaseUnavailable):
    """The server refuses the login: the password is wrong, or the role is unknown or may not connect."""


class StaleServer(DatabaseUnavailable):
    """The server is a former primary: a standby of the same cluster was promoted since."""


class NotPermitted(AwaError):
    """The login lacks a privilege that one of awa's roles has."""


class AppNotFound(AwaError):
    """APP does not name an awa.App."""


class EmbeddedError(AwaError):
    """The embedded PostgreSQL cannot start."""
