"""`noop_echo`: a job that does nothing, for demos and to see whether all is well."""

import asyncio
from typing import Any

from awa_py.model.outcomes import Retry, Throttled


async def noop_echo(
    sleep_ms: float = 0, fail: bool | str = False, throttle: bool = False, **echoed: Any
) -> dict[str, Any]:
    """Sleeps, throttles its queue or fails where it is told to; else returns what else it was given."""
    if sleep_ms:
        await asyncio.sleep(sleep_ms / 1000)
    if throttle:
        raise Throttled("noop_echo was told to")
    if fail:
        raise Retry(fail if isinstance(fail, str) else "noop_echo was told to fail")
    return echoed
