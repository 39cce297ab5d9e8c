"""`async with app:`: errors say why the database cannot be used, and the embedded PostgreSQL is started."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

import awa_py as awa
from awa_py import App
from awa_py.db.migrations import needed_version
from awa_py.embedded import EmbeddedPostgres
from awa_py.store.session import Session
from tests.support import QUICK, count, drain, eventually

pytestmark = pytest.mark.integration

NOWHERE = "postgresql://u@127.0.0.1:1/d"


def changed(url: str, *, login: str | None = None, database: str | None = None) -> str:
    """Return the URL with another USER:PASSWORD or another database."""
    parts = urlsplit(url)
    given, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login or given}@{host}", path=f"/{database or parts.path[1:]}"))


async def open_app(app: App) -> None:
    async with app:
        pass


class TestErrors:
    async def test_dead_server_is_unavailable(self) -> None:
        with pytest.raises(awa.DatabaseUnavailable, match="cannot connect to the database: "):
            await open_app(App(NOWHERE))

    async def test_wrong_password_is_refused(self, database_url: str) -> None:
        url = changed(database_url, login=f"{urlsplit(database_url).username}:wrong")
        with pytest.raises(awa.LoginRefused, match="password authentication failed"):
            await open_app(App(url))

    async def test_unknown_role_is_refused(self, database_url: str) -> None:
        with pytest.raises(awa.LoginRefused, match='user "stranger"'):
            await open_app(App(changed(database_url, login="stranger:wrong")))

    async def test_missing_database_is_named(self, database_url: str) -> None:
        with pytest.raises(awa.DatabaseMissing, match='database "nowhere" does not exist'):
            await open_app(App(changed(database_url, database="nowhere")))

    async def test_missing_schema_is_named_with_the_remedy(self, fresh_database_url: str) -> None:
        with pytest.raises(awa.SchemaMissing, match="no schema 'awa' of awa: run `awa migrate`"):
            await open_app(App(fresh_database_url))

    async def test_older_schema_is_named_with_both_versions(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newer = needed_version() + 1
        monkeypatch.setattr("awa_py.db.migrations.needed_version", lambda: newer)
        with pytest.raises(awa.SchemaMissing, match=f"this program needs {newer}: run `awa migrate`"):
            await open_app(App(database_url))

    async def test_newer_schema_is_named_with_the_remedy(self, database_url: str, session: Session) -> None:
        await session.connection.execute("INSERT INTO awa.schema_version VALUES (9999, 'later', false, '9.9')")
        try:
            with pytest.raises(awa.SchemaTooNew, match=r"has version 9999.*upgrade awa"):
                await open_app(App(database_url))
        finally:
            await session.connection.execute("DELETE FROM awa.schema_version WHERE version = 9999")

    async def test_app_without_a_database_names_the_variables(self) -> None:
        with pytest.raises(awa.ConfigError, match=r"set AWA_DATABASE_URL .* or AWA_EMBEDDED_DIR"):
            await open_app(App())

    async def test_app_that_could_not_be_opened_can_be_opened_later(self, database_url: str) -> None:
        app = App(changed(database_url, database="nowhere"))
        with pytest.raises(awa.DatabaseMissing):
            await open_app(app)
        with pytest.raises(awa.AwaError, match="the app is not open"):
            await app.get(1)
        app.connect_to(App(database_url).database)
        async with app:
            await app.enqueue("work")

    async def test_worker_waits_for_a_dead_server(self, caplog: pytest.LogCaptureFixture) -> None:
        working = asyncio.create_task(App(NOWHERE, settings=QUICK).work())
        await eventually(lambda: "registry: cannot reach the database" in caplog.text)
        assert not working.done()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_concurrent_users_share_a_client(app: App) -> None:
    async def use() -> object:
        async with app:
            await app.enqueue("work")
            return app.client

    async with app:
        client = app.client
        for used in await asyncio.gather(use(), use()):
            assert used is client
    first, second = await asyncio.gather(use(), use())
    assert first is second is not client
    with pytest.raises(awa.AwaError, match="the app is not open"):
        await app.get(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a server that another user keeps running."""
    directory = tmp_path_factory.mktemp("embedded")
    with EmbeddedPostgres(directory, settings={"fsync": "off"}):
        yield directory


class TestEmbedded:
    @pytest.fixture
    def embedded_app(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> App:
        monkeypatch.setenv("AWA_EMBEDDED_DIR", str(directory))
        return App(settings=QUICK)

    async def test_app_uses_the_directory_of_the_environment(self, embedded_app: App) -> None:
        @embedded_app.job
        async def work() -> int:
            return 7

        await drain(embedded_app)  # also without `async with`
        async with embedded_app as app:
            job = await work.enqueue()
            await drain(app)
            assert await app.result(job) == 7

    async def test_app_starts_the_server_and_stops_it_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWA_EMBEDDED_DIR", str(tmp_path / "data"))
        app = App()
        for jobs in range(2):
            async with app:
                assert await app.pool.fetchval("SELECT count(*) FROM awa.jobs") == jobs
                await app.enqueue("work")
            with pytest.raises(awa.DatabaseUnavailable):
                await open_app(App(app.database.url))

    async def test_directory_wins_over_the_url_of_the_environment(
        self, embedded_app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on the command line."""
        monkeypatch.setenv("AWA_DATABASE_URL", NOWHERE)
        monkeypatch.setenv("AWA_DIRECT_URL", NOWHERE)
        async with embedded_app as app:
            await app.enqueue("work")

    async def test_url_of_the_app_wins_over_the_directory(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWA_EMBEDDED_DIR", "/dev/null")
        async with app:
            await app.enqueue("work")
        assert await count(session.connection, "SELECT count(*) FROM awa.ready") == 1

    async def test_worker_of_an_app_that_is_not_open_is_refused(self, embedded_app: App) -> None:
        with pytest.raises(awa.ConfigError, match="the embedded PostgreSQL runs while the app is open"):
            embedded_app.worker(["default"])

    async def test_directory_that_cannot_be_used_is_a_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWA_EMBEDDED_DIR", "/dev/null")
        with pytest.raises(awa.EmbeddedError, match="/dev/null"):
            await open_app(App())
