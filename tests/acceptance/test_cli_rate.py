"""awa rate"""

import pytest

from awa_py.connections import Connection
from awa_py.store.rate_limits import take_tokens
from awa_py.store.session import Session
from tests.acceptance.conftest import Awa
from tests.acceptance.test_cli import columns

pytestmark = pytest.mark.integration

TASKS = """
import awa_py as awa

app = awa.App()


@app.job
async def call(ctx: awa.Context) -> str:
    await ctx.rate_limit("gh")
    return "called"


@app.job
def call_from_a_thread(ctx: awa.Context) -> str:
    ctx.rate_limit("gh", max_wait="1s")
    return "called"
"""


async def test_rate_limit_is_set_listed_drained_and_deleted(
    awa: Awa, connection: Connection, session: Session
) -> None:  # F14
    assert awa.ok("rate", "list").out == "no rate limits\n"
    assert awa.ok("rate", "set", "gh", "5000/h").out == 'rate limit "gh" is set to 5000/h with a burst of 1\n'
    awa.ok("rate", "set", "slack", "50/60s", "--burst", "10")
    table = [line.split() for line in awa.ok("rate", "list").out.splitlines()]
    assert table == [
        ["name", "rate", "burst", "tokens", "wait"],
        ["gh", "5000/h", "1", "1", "0s"],
        ["slack", "50/m", "10", "10", "0s"],
    ]
    gh, slack = awa.ok("rate", "list", "--json").json
    assert gh.keys() == await columns(connection, "rate_limits") | {"wait_s"}
    assert (slack["name"], slack["count"], slack["period"], slack["burst"]) == ("slack", 50, "1m", 10)
    assert awa.ok("rate", "drain", "slack").out == 'rate limit "slack" is drained\n'
    assert awa.ok("rate", "drain", "gh", "--for", "10m").out == 'rate limit "gh" is drained for 10m\n'
    gh, slack = awa.ok("rate", "list", "--json").json
    assert slack["tokens"] < 10
    assert 500 < gh["wait_s"] < 601
    assert not (await take_tokens(session, "gh", tokens=1, callers=1, max_wait_s=60)).waits_s
    assert awa.ok("rate", "list").out.splitlines()[1].split()[3:] != ["1", "0s"]
    assert awa.ok("rate", "delete", "gh").out == 'rate limit "gh" is deleted\n'
    assert [limit["name"] for limit in awa.ok("rate", "list", "--json").json] == ["slack"]


def test_handlers_wait_for_the_rate_limit(awa: Awa) -> None:
    (awa.directory / "limited.py").write_text(TASKS)
    awa.ok("rate", "set", "gh", "100/s")
    jobs = [awa.ok("enqueue", kind).out.strip() for kind in ("call", "call_from_a_thread")]
    awa.ok("worker", "limited:app", "-q", "default", "--burst")
    assert [awa.ok("job", "show", job, "--json").json["result"] for job in jobs] == ["called"] * 2
    awa.ok("rate", "drain", "gh", "--for", "1h")
    job = awa.ok("enqueue", "call_from_a_thread").out.strip()
    awa.ok("worker", "limited:app", "-q", "default", "--burst")
    snoozed = awa.ok("job", "show", job, "--json").json
    assert (snoozed["state"], snoozed["attempt"]) == ("scheduled", 0)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("rate", "set", "gh", "often"), '"often" is not a rate'),
        (("rate", "set", "gh", "0/s"), "allows nothing"),
        (("rate", "set", "gh", "5/0s"), "too short"),
        (("rate", "set", "gh"), "Missing argument 'RATE'"),
        (("rate", "set", "", "5/s"), "a rate limit's name cannot be empty"),
        (("rate", "set", "x" * 201, "5/s"), "at most 200 characters"),
        (("rate", "set", "gh", "5/s", "--burst", "0"), "greater than or equal to 1"),
        (("rate", "drain", "gh", "--for", "a while"), "is not a duration"),
    ],
)
def test_wrong_usage_exits_with_2(awa: Awa, command: tuple[str, ...], sentence: str) -> None:
    answer = awa(*command)
    assert answer.code == 2
    assert sentence in " ".join(answer.err.replace("│", " ").split())


@pytest.mark.parametrize("command", ["drain", "delete"])
def test_unknown_rate_limit_is_named(awa: Awa, command: str) -> None:  # F14
    answer = awa("rate", command, "gh")
    assert answer.code == 1
    assert answer.err == 'awa: there is no rate limit "gh": `awa rate set gh 5000/h` creates one\n'
