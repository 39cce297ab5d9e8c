"""All settings that are not arguments, with their defaults, environment variables and limits."""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from awa_py import durations
from awa_py.errors import ConfigError, InvalidDuration

logger = logging.getLogger("awa.settings")

DEFAULT_SCHEMA = "awa"
MAX_PORT = 65535
COUNTS = ("max_args_bytes", "max_step_bytes", "max_steps")  # settings that are numbers, not durations
# As the command line reads them.
TRUE = ("1", "true", "t", "yes", "y", "on")
FALSE = ("", "0", "false", "f", "no", "n", "off")
_HOST = r"(\[[^\]]*\]|[^:@\[\]]*)(:(?P<port>[0-9]*))?"


def _setting(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Intervals, retentions and limits. The environment variable of each is `AWA_` and its name in capitals."""

    heartbeat_interval: timedelta = _setting(_seconds(30), "how often a worker renews the leases of its running jobs")
    heartbeat_staleness: timedelta = _setting(
        _seconds(90), "how old a job's heartbeat may be before its worker is presumed dead"
    )
    report_interval: timedelta = _setting(
        _seconds(2), "how often a worker reports that it is alive and reads its directives"
    )
    share_staleness: timedelta = _setting(
        _seconds(8), "how old a worker's report may be before others get its share of max_workers"
    )
    gone_after: timedelta = _setting(
        _seconds(10), "how long after the end of a worker's session its running jobs are rescued"
    )
    heartbeat_rescue_interval: timedelta = _setting(
        _seconds(30),
        "how often the leader rescues jobs with a stale heartbeat, or more often: a third of the smallest staleness",
    )
    deadline_rescue_interval: timedelta = _setting(
        _seconds(30), "how often the leader rescues jobs past their deadline"
    )
    promote_interval: timedelta = _setting(
        _seconds(5), "how long the leader sleeps at most before it promotes due jobs"
    )
    cleanup_interval: timedelta = _setting(_seconds(60), "how often the leader deletes jobs past their retention")
    cron_sync_interval: timedelta = _setting(_seconds(60), "how often the leader writes its app's schedules")
    cron_eval_interval: timedelta = _setting(
        _seconds(1), "how long the leader sleeps at most before it fires due schedules"
    )
    unserved_interval: timedelta = _setting(
        _seconds(30), "how often the leader reports due jobs whose kind no live worker knows"
    )
    rebalance_interval: timedelta = _setting(
        _seconds(2), "how often the leader splits max_workers over the live workers"
    )
    aging_interval: timedelta = _setting(
        _seconds(300), "how long an available job waits behind higher priorities before its own is raised"
    )
    aging_check_interval: timedelta = _setting(
        _seconds(5), "how often the leader looks for jobs whose priority to raise"
    )
    leader_check_interval: timedelta = _setting(_seconds(3), "how often the leader uses its session, to keep it alive")
    leader_timeout: timedelta = _setting(
        _seconds(10), "how long the leader's session may be silent before PostgreSQL ends it"
    )
    election_interval: timedelta = _setting(_seconds(1), "how often a candidate tries to become the leader")
    completed_retention: timedelta = _setting(timedelta(hours=24), "how long completed jobs are kept; 0 keeps none")
    failed_retention: timedelta = _setting(timedelta(hours=72), "how long failed and cancelled jobs are kept")
    events_retention: timedelta = _setting(
        timedelta(days=7), "how long events of job histories are kept; 0 records none"
    )
    rollup_interval: timedelta = _setting(
        _seconds(60), "how often the leader rolls up the statistics of the last minutes"
    )
    rollup_retention: timedelta = _setting(
        timedelta(days=30), "how long the statistics of each minute are kept; 0 keeps none"
    )
    shutdown_timeout: timedelta = _setting(_seconds(30), "how long running jobs may take to finish after a stop signal")
    poll_interval: timedelta = _setting(
        _seconds(0.5), "how often an idle worker polls; four times less often while it receives wake-ups"
    )
    result_interval: timedelta = _setting(_seconds(0.06), "how often a client looks for the results that it waits for")
    metrics_interval: timedelta = _setting(
        _seconds(15), "how often the leader reads the queue metrics, if a metrics port is open"
    )
    blocked_after: timedelta = _setting(
        _seconds(1), "how long a handler may block the event loop before it is logged with its stack"
    )
    max_args_bytes: int = _setting(1024 * 1024, "the maximum size of a job's arguments or result, in bytes of JSON")
    max_step_bytes: int = _setting(
        1024 * 1024, "the maximum size of the result of a durable job's step, in bytes of JSON"
    )
    max_steps: int = _setting(10_000, "the maximum number of checkpoints of a durable job")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> Self:
        """Read the settings from the environment. A blank variable, and an override that is None, count as unset."""
        values: dict[str, Any] = {}
        for setting in fields(cls):
            text = environ.get(variable(setting.name), "").strip()
            if text:
                values[setting.name] = _read(setting.name, text)
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if not isinstance(value, timedelta):
                continue
            if setting.name.endswith("_retention"):
                if value < timedelta(0):
                    raise ConfigError(f"{variable(setting.name)} must not be negative")
            elif value <= timedelta(0):
                raise ConfigError(f"{variable(setting.name)} must be longer than 0")
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"{variable(name)} must be 1 or more")
        if self.heartbeat_staleness <= self.heartbeat_interval:
            raise ConfigError(
                f"AWA_HEARTBEAT_STALENESS ({durations.text(self.heartbeat_staleness)}) must exceed "
                f"AWA_HEARTBEAT_INTERVAL ({durations.text(self.heartbeat_interval)}): every running job would look "
                "dead"
            )
        if self.heartbeat_staleness < 3 * self.heartbeat_interval:
            logger.warning(
                "AWA_HEARTBEAT_STALENESS is less than three times AWA_HEARTBEAT_INTERVAL: one lost heartbeat "
                "may make a live job look dead"
            )
        if self.share_staleness < 2 * self.report_interval:
            raise ConfigError(
                f"AWA_SHARE_STALENESS ({durations.text(self.share_staleness)}) must be at least twice "
                f"AWA_REPORT_INTERVAL ({durations.text(self.report_interval)}): live workers would lose their shares"
            )
        if self.leader_timeout < 2 * self.leader_check_interval:
            raise ConfigError(
                "AWA_LEADER_TIMEOUT must be at least twice AWA_LEADER_CHECK_INTERVAL: PostgreSQL would end the "
                "session of a healthy leader"
            )


def variable(setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"AWA_{setting.upper()}"


def _read(name: str, text: str) -> timedelta | int:
    if name in COUNTS:
        if not text.isdecimal():
            raise ConfigError(
                f"{variable(name)}: {text!r} is not a number{' of bytes' if name.endswith('bytes') else ''}"
            )
        return int(text)
    try:
        return durations.parse(text)
    except InvalidDuration as error:
        raise ConfigError(f"{variable(name)}: {error}") from None


def schema_name(schema: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the given schema, else AWA_SCHEMA, else `awa`."""
    return schema or environ.get("AWA_SCHEMA", "").strip() or DEFAULT_SCHEMA


def database_url(url: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the given URL, else AWA_DATABASE_URL, else DATABASE_URL, else the credential `database_url`."""
    found = url or _database_url_of(environ)
    if not found:
        raise ConfigError(
            "no database: set AWA_DATABASE_URL to postgresql://user:password@host/database, or AWA_EMBEDDED_DIR to a "
            "directory for an embedded PostgreSQL"
        )
    return _checked_url(found, "database")


def names_database(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names a database."""
    return bool(_database_url_of(environ))


def embedded_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of the embedded PostgreSQL: AWA_EMBEDDED_DIR, or the default one if AWA_EMBEDDED is true.

    Return None if neither is set.
    """
    directory = environ.get("AWA_EMBEDDED_DIR", "").strip()
    if directory:
        return Path(directory)
    return default_embedded_directory(environ) if _is_true("AWA_EMBEDDED", environ) else None


def default_embedded_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of an embedded PostgreSQL for which none is given."""
    base = environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "awa" / "postgres"


def _is_true(name: str, environ: Mapping[str, str]) -> bool:
    text = environ.get(name, "").strip().lower()
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ConfigError(f"{name}: {text!r} is neither true nor false")


def direct_url(url: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL that bypasses a pooler: the given one, else AWA_DIRECT_URL, else the credential `direct_url`."""
    found = url or environ.get("AWA_DIRECT_URL", "").strip() or credential("direct_url", environ)
    return _checked_url(found, "direct") if found else None


def credential(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the credential that systemd passed with LoadCredential=, or an empty string."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        return (Path(directory) / name).read_text(encoding="utf-8").strip() if directory else ""
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the credential {name}: {error}") from error


def _database_url_of(environ: Mapping[str, str]) -> str:
    found = environ.get("AWA_DATABASE_URL", "").strip() or environ.get("DATABASE_URL", "").strip()
    return found or credential("database_url", environ)


def _checked_url(url: str, name: str) -> str:
    # No error quotes the URL: it may contain the password.
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"the {name} URL must begin with postgresql://")
    authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    hosts = authority.rpartition("@")[2]
    matches = [re.fullmatch(_HOST, host) for host in hosts.split(",")]
    if authority.count("@") > 1 or not all(match and int(match["port"] or 0) <= MAX_PORT for match in matches):
        raise ConfigError(
            f"the {name} URL cannot be parsed: expected postgresql://user:password@host:port/database, with / ? # @ in "
            "a name or a password written as %2F %3F %23 %40"
        )
    _, question_mark, query = url.partition("#")[0].partition("?")
    try:
        parse_qs(query, strict_parsing=bool(question_mark and query))
    except ValueError:
        raise ConfigError(
            f"the {name} URL cannot be parsed: expected name=value pairs after its ?, joined by &"
        ) from None
    return url
