"""A short run of the seeded fault test. `python -m tests.chaos --minutes 5` runs it for longer, with all faults."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import describe
from tests.chaos.faults import database, network, processes
from tests.chaos.run import Run

SECONDS = 20
KINDS = (
    processes.KillWorker,
    processes.KillLeader,
    database.TerminateSessions,
    database.KillPostmaster,
    network.LoseClaim,
    network.LoseFinish,
    network.LoseCommit,
)


@pytest.mark.chaos
async def test_promises_hold_under_seeded_faults(tmp_path: Path) -> None:
    run = Run(seed=1, seconds=SECONDS, kinds=KINDS, directory=tmp_path)
    result = await run.execute()
    assert not result.violations, describe(result)
    assert len(result.faults) >= 3
    assert result.states["completed"] > 100
