"""Settings: read from the environment, and checked."""

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from awa_py import App
from awa_py.errors import ConfigError
from awa_py.settings import Settings, database_url, direct_url, embedded_directory, schema_name, variable


def test_settings_have_the_documented_defaults() -> None:  # A1
    settings = Settings()
    assert {name: getattr(settings, name).total_seconds() for name in SECONDS} == SECONDS


SECONDS = {
    "heartbeat_interval": 30,
    "heartbeat_staleness": 90,
    "report_interval": 2,
    "share_staleness": 8,
    "gone_after": 10,
    "heartbeat_rescue_interval": 30,
    "deadline_rescue_interval": 30,
    "promote_interval": 5,
    "cleanup_interval": 60,
    "cron_sync_interval": 60,
    "cron_eval_interval": 1,
    "aging_check_interval": 5,
    "election_interval": 1,
    "completed_retention": 24 * 3600,
    "failed_retention": 72 * 3600,
    "shutdown_timeout": 30,
    "poll_interval": 0.5,
}


@pytest.mark.parametrize("setting", SECONDS)
def test_every_interval_is_read_from_its_variable(setting: str) -> None:
    environ = {"AWA_HEARTBEAT_STALENESS": "1h", "AWA_SHARE_STALENESS": "1h", variable(setting): "10m"}
    assert getattr(Settings.from_env(environ), setting).total_seconds() == 600


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_blank_variable_counts_as_unset(blank: str) -> None:  # F2
    assert Settings.from_env({"AWA_POLL_INTERVAL": blank, "AWA_MAX_ARGS_BYTES": blank}) == Settings()


def test_argument_wins_over_the_environment_unless_it_is_none() -> None:
    environ = {"AWA_POLL_INTERVAL": "2s", "AWA_SHUTDOWN_TIMEOUT": "3s"}
    settings = Settings.from_env(environ, poll_interval=timedelta(seconds=9), shutdown_timeout=None)
    assert (settings.poll_interval, settings.shutdown_timeout) == (timedelta(seconds=9), timedelta(seconds=3))


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("0.5", 0.5), ("1.5s", 1.5), ("2m", 120), ("1h30m", 5400)]
)
def test_interval_may_have_fractions_of_a_second(text: str, seconds: float) -> None:  # D1
    assert Settings.from_env({"AWA_POLL_INTERVAL": text}).poll_interval.total_seconds() == seconds


@pytest.mark.parametrize("text", ["10 parsecs", "soon", "-5s", "nan", "inf"])
def test_error_about_a_duration_names_its_variable(text: str) -> None:  # Y4
    with pytest.raises(ConfigError, match="AWA_PROMOTE_INTERVAL: "):
        Settings.from_env({"AWA_PROMOTE_INTERVAL": text})


@pytest.mark.parametrize("setting", [name for name in SECONDS if not name.endswith("_retention")])
def test_interval_of_zero_is_rejected(setting: str) -> None:  # Y4
    with pytest.raises(ConfigError, match=f"{variable(setting)} must be longer than 0"):
        Settings.from_env({}, **{setting: timedelta(0)})


def test_retention_of_zero_is_valid() -> None:
    assert Settings.from_env({"AWA_COMPLETED_RETENTION": "0"}).completed_retention == timedelta(0)


def test_negative_retention_is_rejected() -> None:
    with pytest.raises(ConfigError, match="AWA_FAILED_RETENTION"):
        Settings(failed_retention=timedelta(seconds=-1))


@pytest.mark.parametrize("staleness", ["30s", "29.9s", "1s"])
def test_staleness_within_the_interval_is_rejected(staleness: str) -> None:  # D1
    with pytest.raises(ConfigError, match=r"AWA_HEARTBEAT_STALENESS \(.*\) must exceed AWA_HEARTBEAT_INTERVAL \(30s\)"):
        Settings.from_env({"AWA_HEARTBEAT_STALENESS": staleness})


@pytest.mark.parametrize(("staleness", "warned"), [("30.5s", True), ("89.9s", True), ("90s", False), ("5m", False)])
def test_staleness_under_three_intervals_logs_a_warning(  # D1
    staleness: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Settings.from_env({"AWA_HEARTBEAT_STALENESS": staleness})
    assert ("less than three times AWA_HEARTBEAT_INTERVAL" in caplog.text) is warned


def test_share_staleness_must_be_twice_the_report_interval() -> None:
    with pytest.raises(
        ConfigError, match=r"AWA_SHARE_STALENESS \(8s\) must be at least twice AWA_REPORT_INTERVAL \(5s\)"
    ):
        Settings.from_env({"AWA_REPORT_INTERVAL": "5s"})


def test_leader_timeout_must_be_twice_the_check_interval() -> None:
    with pytest.raises(ConfigError, match="AWA_LEADER_TIMEOUT must be at least twice AWA_LEADER_CHECK_INTERVAL"):
        Settings.from_env({"AWA_LEADER_TIMEOUT": "5s"})


@pytest.mark.parametrize("text", ["many", "1MiB", "-1", "1.5"])
def test_maximum_of_bytes_must_be_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match=f"AWA_MAX_ARGS_BYTES: '{text}' is not a number of bytes"):
        Settings.from_env({"AWA_MAX_ARGS_BYTES": text})


def test_maximum_of_zero_bytes_is_rejected() -> None:
    with pytest.raises(ConfigError, match="AWA_MAX_ARGS_BYTES must be 1 or more"):
        Settings.from_env({"AWA_MAX_ARGS_BYTES": "0"})


def test_database_url_is_the_given_one_or_from_the_environment() -> None:
    both = {"AWA_DATABASE_URL": "postgresql://a/x", "DATABASE_URL": "postgres://b/y"}
    assert database_url("postgresql://c/z", both) == "postgresql://c/z"
    assert database_url(None, both) == "postgresql://a/x"
    assert database_url(None, {**both, "AWA_DATABASE_URL": "  "}) == "postgres://b/y"


def test_direct_url_is_the_given_one_or_from_the_environment_or_none() -> None:
    environ = {"AWA_DIRECT_URL": "postgresql://a/x"}
    assert direct_url("postgresql://c/z", environ) == "postgresql://c/z"
    assert direct_url(None, environ) == "postgresql://a/x"
    assert direct_url(None, {"AWA_DIRECT_URL": "  "}) is None
    with pytest.raises(ConfigError, match="the direct URL must begin with postgresql://"):
        direct_url("mysql://root:secret@host/db", {})


def test_direct_url_of_the_environment_belongs_to_its_database_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWA_DATABASE_URL", "postgresql://pooler/x")
    monkeypatch.setenv("AWA_DIRECT_URL", "postgresql://server/x")
    for app, urls in (
        (App(), ("postgresql://pooler/x", "postgresql://server/x")),
        (App(direct_url="postgresql://d/x"), ("postgresql://pooler/x", "postgresql://d/x")),
        (App("postgresql://p/y"), ("postgresql://p/y", None)),
        (App("postgresql://p/y", direct_url="postgresql://d/y"), ("postgresql://p/y", "postgresql://d/y")),
    ):
        app.candidate()  # looks for the database
        assert (app.database.url, app.database.direct_url) == urls


def test_error_without_a_database_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="no database: set AWA_DATABASE_URL"):
        database_url(None, {})


def test_url_of_another_database_is_rejected_without_showing_its_password() -> None:
    with pytest.raises(ConfigError, match="must begin with postgresql://") as error:
        database_url("mysql://root:secret@host/db", {})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host",
        "postgresql:///db?host=/tmp&port=5432",
        "postgresql://me:a%2Fb%40c@host:5432/db",
        "postgresql://me:a:b@host/db",
        "postgresql://me@[::1]:5432/db",
        "postgresql://me:x@one:5432,two,three:/db?target_session_attrs=primary",
        "postgresql://me@%2Fvar%2Frun/db",
        "postgresql://host/db?user=me@home",
        "postgresql://host/db?",
    ],
)
def test_urls_of_all_forms_are_accepted(url: str) -> None:
    assert database_url(url, {}) == url


@pytest.mark.parametrize(
    "url",
    [
        *(f"postgresql://me:hun{letter}ter@host/db" for letter in "/?#@"),
        "postgresql://me:x@host:hunter/db",
        "postgresql://me:x@host:65536/db",
        "postgresql://me:x@one,two:hunter/db",
        "postgresql://me:x@host/db?password=a&hunter",
    ],
)
def test_error_about_a_url_does_not_quote_it(url: str) -> None:
    with pytest.raises(ConfigError, match="the database URL cannot be parsed") as error:
        database_url(url, {})
    assert "hun" not in str(error.value)


def test_schema_is_the_given_one_or_from_the_environment() -> None:
    assert schema_name("given", {"AWA_SCHEMA": "env"}) == "given"
    assert schema_name(None, {"AWA_SCHEMA": "env"}) == "env"
    assert schema_name(None, {"AWA_SCHEMA": " "}) == "awa"


def test_environment_wins_over_credential(tmp_path: Path) -> None:
    (tmp_path / "database_url").write_text("postgresql://credential\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert database_url(environ=environ) == "postgresql://credential"
    assert database_url(environ={**environ, "DATABASE_URL": "postgresql://variable"}) == "postgresql://variable"
    assert database_url("postgresql://option", environ) == "postgresql://option"


def test_missing_credential_is_ignored_and_unreadable_one_is_an_error(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    with pytest.raises(ConfigError, match="no database"):
        database_url(environ=environ)
    (tmp_path / "database_url").mkdir()
    with pytest.raises(ConfigError, match="cannot read the credential database_url"):
        database_url(environ=environ)


def test_directory_of_the_embedded_server_comes_from_the_environment() -> None:
    home = {"XDG_DATA_HOME": "/data"}
    assert embedded_directory(home) is None
    assert embedded_directory({**home, "AWA_EMBEDDED": "false", "AWA_EMBEDDED_DIR": " "}) is None
    assert embedded_directory({**home, "AWA_EMBEDDED": "Yes"}) == Path("/data/awa/postgres")
    assert embedded_directory({"HOME": "/home/ann", "AWA_EMBEDDED": "1", "AWA_EMBEDDED_DIR": "here"}) == Path("here")


def test_embedded_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="AWA_EMBEDDED: 'maybe' is neither true nor false"):
        embedded_directory({"AWA_EMBEDDED": "maybe"})
