"""Commands through PgBouncer, with and without the direct URL."""

from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import Awa
from tests.pgbouncer import needs_pgbouncer, pgbouncer

pytestmark = [pytest.mark.integration, needs_pgbouncer]

BURST = ("worker", "tasks:app", "-q", "email", "--burst")


@pytest.fixture
def pooled_url(database_url: str) -> Iterator[str]:
    with pgbouncer(database_url, size=2) as started:
        yield started.url


def test_commands_use_the_pooler_and_workers_the_direct_url(awa: Awa, pooled_url: str, database_url: str) -> None:
    pooled = {"AWA_DATABASE_URL": pooled_url}
    assert awa.ok("enqueue", "greet", '{"name": "x"}', "-q", "email", env=pooled).out == "1\n"
    assert len(awa.ok("enqueue", "greet", '{"name": "x"}', "-q", "email", "-n", "300", env=pooled).out.split()) == 300
    awa.ok(*BURST, env={**pooled, "AWA_DIRECT_URL": database_url})
    assert awa.ok("stats", "--json", env=pooled).json["states"]["completed"] == 301
    awa.ok("enqueue", "greet", '{"name": "y"}', "-q", "email", env=pooled)
    awa.ok(*BURST, "--database-url", pooled_url, "--direct-url", database_url)
    assert awa.ok("job", "show", "302", "--json", env=pooled).json["state"] == "completed"


def test_missing_direct_url_is_explained(awa: Awa, pooled_url: str, database_url: str) -> None:
    for command, env in (
        (BURST, {"AWA_DATABASE_URL": pooled_url}),
        (("maintenance",), {"AWA_DATABASE_URL": pooled_url}),
        # The environment's direct URL belongs to the environment's database.
        ((*BURST, "--database-url", pooled_url), {"AWA_DIRECT_URL": database_url}),
    ):
        answer = awa(*command, env=env)
        assert answer.code == 1
        assert answer.err.count("\n") == 1
        assert "leads through a pooler in transaction mode" in answer.err
        assert "set AWA_DIRECT_URL (--direct-url)" in answer.err


def test_direct_url_of_another_database_is_refused(awa: Awa) -> None:
    answer = awa("workers", env={"AWA_DIRECT_URL": "mysql://x"})
    assert (answer.code, answer.err) == (1, "awa: the direct URL must begin with postgresql://\n")
