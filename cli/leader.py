"""awa leader"""

from awa_py.store import election

from .environment import Environment
from .output import print_fields, print_json, say, timestamp
from .parsing import JsonOption

NO_LEADER = "there is no leader: start `awa worker` or `awa maintenance`"


async def leader(env: Environment, as_json: JsonOption = False) -> None:
    """Show the leader."""
    async with env.session() as session:
        found = await election.get_leader(session)
        now = await session.now()
    if as_json:
        print_json(found)
    elif found is None:
        say(NO_LEADER)
    else:
        print_fields(
            {
                "worker": str(found.worker_id),
                "host": found.hostname,
                "pid": found.pid,
                "epoch": found.epoch,
                "elected": timestamp(found.elected_at, now),
            }
        )
