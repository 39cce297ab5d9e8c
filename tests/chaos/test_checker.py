"""The checker of the fault test notices every kind of violation, and accepts what the promises allow."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.checker import CHECKS, check
from tests.chaos.cluster import Life
from tests.chaos.evidence import Evidence, Row, Start
from tests.chaos.faults.base import Record
from tests.chaos.producers import Fate, Order
from tests.chaos.proxy import CLAIMS, FINISHES
from tests.chaos.recovery import recoveries
from tests.chaos.report import markdown

PID, OTHER_PID = 100, 200


def start(job: int = 1, at: float = 10.0, **changes: Any) -> Start:
    """Return a start of the job's handler that ends a second later."""
    values: dict[str, Any] = {
        "at": at,
        "nonce": f"{job}@{at}",
        "job": job,
        "kind": "quick",
        "attempt": 1,
        "lease": 1,
        "n": job,
        "key": None,
        "pid": PID,
        "claim_age_s": 0.1,
        "lease_age_s": 0.1,
        "ended": at + 1,
        "how": "ok",
    }
    return Start(**values | changes)


def row(job: int = 1, **changes: Any) -> Row:
    """Return a job that its start at 10 completed."""
    values: dict[str, Any] = {
        "id": job,
        "kind": "quick",
        "state": "completed",
        "attempt": 1,
        "max_attempts": 25,
        "lease": 1,
        "n": job,
        "nonce": f"{job}@10.0",
        "created_at": 9.0,
        "finalized_at": 11.5,
        "fire_time": None,
    }
    return Row(**values | changes)


def order(job: int = 1, **changes: Any) -> Order:
    values: dict[str, Any] = {
        "n": job,
        "kind": "quick",
        "began": 8.9,
        "ended": 9.1,
        "fate": Fate.COMMITTED,
        "job": job,
    }
    return Order(**values | changes)


def fault(**changes: Any) -> Record:
    values: dict[str, Any] = {"name": "fault", "detail": "", "began": 10.0, "ended": 10.5, "healed": 10.5}
    return Record(**values | changes)


def lives(**changes: Any) -> list[Life]:
    first = Life(name="worker-1", pid=PID, began=0.0, ended=99.0)
    return [replace(first, **changes), Life(name="worker-2", pid=OTHER_PID, began=0.0, ended=99.0)]


def evidence(**changes: Any) -> Evidence:
    values: dict[str, Any] = {"starts": [start()], "rows": [row()], "orders": [order()], "lives": lives()}
    return Evidence(**values | changes)


SECOND = start(at=20.0, lease=2, attempt=2, pid=OTHER_PID)
BY_SECOND = row(nonce="1@20.0", lease=2, attempt=2, finalized_at=21.5)

BROKEN: dict[str, list[Evidence]] = {
    "a committed job ends in exactly one final state": [
        evidence(rows=[], starts=[]),
        evidence(rows=[row(state="running", finalized_at=None)]),
        evidence(rows=[row(), row()]),
        evidence(rows=[row(), row(2, n=1, nonce="2@10.0")], starts=[start(), start(2)]),
    ],
    "a rolled-back job never exists and never runs": [
        evidence(orders=[order(fate=Fate.ROLLED_BACK)]),
        evidence(orders=[order(fate=Fate.ROLLED_BACK)], rows=[]),
        evidence(orders=[order(fate=Fate.UNKNOWN, in_transaction=True)]),
        evidence(orders=[order(fate=Fate.UNKNOWN, in_transaction=True)], rows=[], starts=[], written_orders={1}),
    ],
    "a job and its payload are never without each other": [
        evidence(unpaired=[(1, True)]),
        evidence(unpaired=[(2, False)]),
    ],
    "the outcome is the one that the handler decided": [
        evidence(rows=[row(state="failed")]),
        evidence(rows=[row(kind="fail_always")]),
        evidence(rows=[row(kind="once", state="failed")], starts=[]),
    ],
    "max_attempts is never exceeded": [
        evidence(rows=[replace(BY_SECOND, max_attempts=1)], starts=[start(how="error"), SECOND]),
        evidence(  # a crash does not take back a durable claim
            rows=[replace(BY_SECOND, kind="twice", max_attempts=1)],
            starts=[start(kind="twice", how="error"), replace(SECOND, kind="twice")],
            faults=[fault(began=10.0, ended=10.2, healed=10.2, crashes=[(10.0, 10.1)])],
        ),
    ],
    "an attempt that lost its lease changes nothing": [
        evidence(rows=[row(finalized_at=22.0)], starts=[start(how="killed", ended=22.0), SECOND]),
        evidence(rows=[row(nonce="unknown")]),
    ],
    "no handler starts on a lease that has run out": [
        evidence(starts=[start(lease_age_s=5.1)]),
        evidence(starts=[start(kind="look", row_lease=2, looked_after_s=0.1)]),
        evidence(starts=[start(kind="look", row_lease=None, looked_after_s=0.1)]),
    ],
    "jobs of an ordered key run one at a time, in order": [
        evidence(
            rows=[row(kind="ordered"), row(2, kind="ordered", nonce="2@10.5")],
            starts=[start(kind="ordered", key="k"), start(2, at=10.5, kind="ordered", key="k")],
        ),
        evidence(
            rows=[row(kind="ordered", nonce="1@15.0", finalized_at=17.0), row(2, kind="ordered")],
            starts=[start(2, kind="ordered", key="k"), start(at=15.0, kind="ordered", key="k")],
        ),
    ],
    "a concurrency key never exceeds its limit": [
        evidence(
            rows=[row(n, kind="keyed") for n in (1, 2, 3)],
            starts=[start(n, kind="keyed", key="k") for n in (1, 2, 3)],
        ),
    ],
    "finished work does not run again": [
        evidence(rows=[BY_SECOND], starts=[start(), SECOND]),
        evidence(starts=[start(), start(at=11.6, lease=1, how="stopped")]),
        # Killed long after the handler had returned: its outcome had been forgotten before.
        evidence(
            rows=[replace(BY_SECOND, nonce="1@60.0", finalized_at=61.5)],
            starts=[start(), replace(SECOND, at=60.0, nonce="1@60.0", ended=61.0)],
            lives=lives(killed=True, ended=50.0),
        ),
    ],
    "one leader per epoch": [evidence(elections=[("leader-1", 7), ("leader-2", 7)])],
    "a schedule fires exactly once for each fire time": [
        evidence(
            rows=[
                row(1, kind="tick", n=None, fire_time="2026-01-01T00:00:00+00:00"),
                row(2, kind="tick", n=None, fire_time="2026-01-01T00:00:00+00:00"),
            ],
            starts=[start(1), start(2)],
            orders=[],
        ),
        evidence(
            rows=[
                row(1, kind="tick", n=None, fire_time="2026-01-01T00:00:00+00:00"),
                row(2, kind="tick", n=None, fire_time="2026-01-01T00:00:02+00:00"),
            ],
            starts=[start(1), start(2)],
            orders=[],
        ),
    ],
    "a unique key has one unfinished job": [
        evidence(
            rows=[row(1, kind="only_one"), row(2, kind="only_one")],
            starts=[start(1), start(2)],
            orders=[
                order(1, kind="only_one", key="a"),
                order(2, kind="only_one", key="a", began=9.5, ended=9.6),
            ],
        ),
    ],
    "everything goes on by itself": [
        evidence(faults=[fault(violations=["worker-1 ended by itself"])]),
        evidence(faults=[fault(began=10.0, ended=11.0, healed=11.0)]),
    ],
}

ALLOWED = {
    "a sound run": evidence(),
    "a snooze and a stop do not count": evidence(
        rows=[replace(BY_SECOND, max_attempts=1, nonce="1@30.0", finalized_at=31.5)],
        starts=[start(how="snoozed"), replace(SECOND, how="stopped"), start(at=30.0, lease=3)],
    ),
    "a crash takes back a claim": evidence(
        rows=[replace(BY_SECOND, max_attempts=1)],
        starts=[start(), SECOND],
        faults=[fault(began=10.0, ended=10.2, healed=10.2, crashes=[(10.0, 10.1)])],
    ),
    "a killed worker cannot write its outcome": evidence(
        rows=[BY_SECOND], starts=[start(), SECOND], lives=lives(killed=True, ended=11.2)
    ),
    "a frozen worker cannot renew its lease": evidence(
        rows=[replace(BY_SECOND, kind="ordered")],
        starts=[start(kind="ordered", key="k", ended=21.0), replace(SECOND, kind="ordered", key="k", at=20.0)],
        lives=lives(frozen=[(10.5, 20.5)]),
    ),
    "a worker cannot start a job if the answer to its claim comes after the lease": evidence(
        rows=[row(kind="once", state="failed", nonce=None), row(2, nonce="2@16.0", finalized_at=17.5)],
        starts=[start(2, at=16.0)],
        orders=[order(), order(2)],
        faults=[fault(name="late answer to a claim", began=9.5, ended=15.5, healed=15.5)],
    ),
    "a worker that alone is cut off cannot write its outcome": evidence(
        rows=[BY_SECOND],
        starts=[start(), SECOND],
        faults=[fault(ended=18.0, healed=18.0, cut_off=[("worker-1", 10.0, 18.0)])],
    ),
    "a producer does not know whether its COMMIT arrived": evidence(
        orders=[order(fate=Fate.UNKNOWN), order(2, fate=Fate.UNKNOWN)]
    ),
}


@pytest.mark.parametrize("promise", CHECKS)
def test_checker_notices_a_broken_promise(promise: str) -> None:
    for broken in BROKEN[promise]:
        assert promise in [violation.promise for violation in check(broken)]


@pytest.mark.parametrize("name", ALLOWED)
def test_checker_accepts_what_the_promises_allow(name: str) -> None:
    assert check(ALLOWED[name]) == []


def test_page_names_every_promise(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs/reliability.md").read_text()
    assert [promise for promise in CHECKS if f"| {promise} |" not in page] == []


def test_statements_that_the_proxy_waits_for_exist(request: pytest.FixtureRequest) -> None:
    files = {path.stem for path in (request.config.rootpath / "awa_py/store/sql").glob("*.sql")}
    assert files >= CLAIMS | FINISHES


def test_recovery_is_the_time_until_a_job_that_started_after_the_fault_has_completed() -> None:
    found = evidence(
        starts=[start(how="killed", ended=None), SECOND],
        rows=[BY_SECOND],
        faults=[fault(began=10.5, ended=12.0, healed=12.0)],
        lives=lives(killed=True, ended=10.6),
    )
    (recovery,) = recoveries(found, began=0.0)
    assert (recovery.jobs_s, recovery.restarts_s) == (9.5, [9.5])


def test_report_has_the_median_and_the_worst_recovery_of_each_fault() -> None:
    faults = [
        {"fault": "failover", "jobs_s": seconds, "schedules_s": None, "restarts_s": [1.0, 3.0]}
        for seconds in (1.0, 2.0, 9.0)
    ]
    result = {"seed": 7, "faults": faults, "jobs": {"committed": 1234}, "starts": 5, "violations": []}
    text = markdown([result, result])
    assert "| all | 6 | 2,468 | 0 | 0 | 10 | 0 |" in text
    assert "| 6 | 2.0 / 9.0 s |  | 2.0 / 3.0 s |" in text
