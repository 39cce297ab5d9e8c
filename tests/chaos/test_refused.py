"""A worker that cannot connect: its jobs run elsewhere soon, but no two handlers of a concurrency key run at once."""

from pathlib import Path

import pytest

import awa_py as awa
from tests.chaos.proxy import fault_proxy
from tests.processes import eventually, processes

pytestmark = pytest.mark.chaos

# The session's end is noticed long before the lease runs out.
SETTINGS = {
    "AWA_GONE_AFTER": "2s",
    "AWA_HEARTBEAT_STALENESS": "12s",
    "AWA_HEARTBEAT_INTERVAL": "1s",
    "AWA_REPORT_INTERVAL": "500ms",
    "AWA_HEARTBEAT_RESCUE_INTERVAL": "500ms",
}


@pytest.mark.parametrize("ordered", [False, True], ids=["limited", "ordered"])
async def test_job_with_a_key_waits_until_its_refused_worker_has_stopped_it(
    client: awa.App, database_url: str, tmp_path: Path, ordered: bool
) -> None:
    log = tmp_path / "runs.log"

    def entries(job: awa.Job) -> list[tuple[str, int]]:
        """Return the starts and ends of the job, each with its process."""
        lines = [line.split() for line in (log.read_text() if log.exists() else "").splitlines()]
        return [(word, int(pid)) for word, job_id, _, pid in lines if int(job_id) == job.id]

    async with fault_proxy(database_url) as (url, proxy):
        with processes(tmp_path, database_url, SETTINGS) as started:
            refused = started.worker("--no-maintenance", env={"AWA_DATABASE_URL": url})
            plain = await client.enqueue("hold")
            keyed = await client.enqueue("hold", concurrency_key="account", concurrency_limit=1, ordered=ordered)
            await eventually("they run", lambda: len(entries(plain)) == len(entries(keyed)) == 1)
            other = started.worker()
            await eventually("there is a leader", lambda: "elected as the leader" in other.output)
            proxy.refuse()
            await eventually("the plain job runs elsewhere", lambda: ("start", other.pid) in entries(plain))
            assert entries(keyed) == [("start", refused.pid)]
            await client.result(keyed.id, timeout="60s")
    first, then = refused.pid, other.pid
    assert entries(keyed) == [("start", first), ("end", first), ("start", then), ("end", then)]
