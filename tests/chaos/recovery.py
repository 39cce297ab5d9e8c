"""How long it took after each fault until everything went on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tests.chaos.evidence import Evidence
from tests.chaos.faults.base import Record

NOTICED_AFTER_S = 1.0  # a process that was frozen ends its handlers when it continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One fault, and the seconds from its end until jobs completed, and schedules fired, again.

    `restarts_s` has the seconds from its beginning until each job that it interrupted started again.
    """

    fault: str
    detail: str
    at_s: float
    lasted_s: float
    jobs_s: float | None
    schedules_s: float | None
    restarts_s: Sequence[float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def recoveries(evidence: Evidence, began: float) -> list[Recovery]:
    return [_recovery(evidence, fault, began) for fault in evidence.faults if not fault.skipped]


def _recovery(evidence: Evidence, fault: Record, began: float) -> Recovery:
    started = {start.nonce: start.at for start in evidence.starts}
    completed = [
        row.finalized_at
        for row in evidence.rows
        if row.finalized_at is not None and row.nonce is not None and started.get(row.nonce, 0) >= fault.healed
    ]
    fired = [row.created_at for row in evidence.rows if row.kind == "tick" and row.created_at >= fault.healed]
    return Recovery(
        fault=fault.name,
        detail=fault.detail,
        at_s=round(fault.began - began, 1),
        lasted_s=round(fault.ended - fault.began, 1),
        jobs_s=round(min(completed) - fault.healed, 2) if completed else None,
        schedules_s=round(min(fired) - fault.healed, 2) if fired else None,
        restarts_s=_restarts_s(evidence, fault),
    )


def _restarts_s(evidence: Evidence, fault: Record) -> list[float]:
    """Return when each job started again whose handler the fault ended, or whose outcome it lost."""
    return [
        round(again.at - fault.began, 1)
        for starts in evidence.by_job.values()
        for start, again in pairwise(starts)
        if start.how in ("killed", "stopped", "ok")
        and fault.began <= evidence.end_of(start) <= fault.ended + NOTICED_AFTER_S
        and again.at > fault.began
    ]
