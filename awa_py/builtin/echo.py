"""`noop_echo`: a job that does nothing, for demos and smoke tests."""

import asyncio
from typing import Any

from awa_py.model.outcomes import Retry, Throttled


async def noop_echo(
    sleep_ms: float = 0, fail: bool | str = False, throttle: bool = False, **echoed: Any
) -> dict[str, Any]:
    """Sleep, throttle the queue or fail as requested; else return the other arguments."""
    if sleep_ms:
        await asyncio.sleep(sleep_ms / 1000)
    if throttle:
        raise Throttled("noop_echo: throttle was set")
    if fail:
        raise Retry(fail if isinstance(fail, str) else "noop_echo: fail was set")
    return echoed
