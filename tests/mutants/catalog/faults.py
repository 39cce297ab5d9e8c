"""Mistakes about faults: leases, lost answers, silence and failover."""

from tests.mutants.mutant import INTEGRATION, SQL, Mutant

MUTANTS = (
    # A queue with durable claims, and a take-over, wait for the disk.
    Mutant(
        name="claims-that-are-never-durable",
        file=SQL + "claim_jobs.sql",
        old="    SELECT awa.commit_durably()\n",
        new="    SELECT 1\n",
        tests=(INTEGRATION + "test_leases.py",),
    ),
    Mutant(
        name="take-over-that-is-not-durable",
        file=SQL + "take_over_jobs.sql",
        old="(SELECT awa.commit_durably())",
        new="(SELECT 1)",
        tests=(INTEGRATION + "test_leases.py",),
    ),
    # A session may outlive its connection, and a claim its answer.
    Mutant(
        name="former-session-is-not-ended",
        file="awa_py/db/reconnecting.py",
        old="SELECT pg_terminate_backend(former.pid, {END_TIMEOUT_S * 1000:.0f})",
        new="SELECT true",
        tests=(INTEGRATION + "test_worker_connections.py",),
    ),
    Mutant(
        name="orphans-of-a-quiet-worker-stay",
        file="awa_py/worker/claiming/claim_loop.py",
        old="if self._claim_may_be_unreported:  # a quiet",
        new="if self._claim_may_be_unreported and not self._quiet:  # a quiet",
        tests=(INTEGRATION + "test_lost_claims.py",),
    ),
    Mutant(
        name="orphans-by-id",
        file="awa_py/store/claim.py",
        old='if (row["id"], row["lease"]) not in known]',
        new='if row["id"] not in {job_id for job_id, _ in known}]',
        tests=(INTEGRATION + "test_claim.py",),
    ),
    Mutant(
        name="outcome-of-an-undone-claim",
        file="awa_py/worker/completer.py",
        old="                if not was_connected:",
        new="                if False:",
        tests=(INTEGRATION + "test_lost_claims.py",),
    ),
    # Two workers start at the same time.
    Mutant(
        name="declarations-without-a-second-look",
        file="awa_py/store/kinds.py",
        old="for _ in range(2):",
        new="for _ in range(1):",
        tests=(INTEGRATION + "test_concurrent_declarations.py",),
    ),
    # Silence counts only if the leader has watched it.
    Mutant(
        name="stale-rescue-after-a-hang",
        file=SQL + "rescue_stale_jobs.sql",
        old="\n              AND r.heartbeat_at < $4 - coalesce(q.staleness, $1::interval) / 2)",
        new=")",
        tests=(INTEGRATION + "test_rescue.py",),
    ),
    Mutant(
        name="take-over-after-an-election",
        file=SQL + "take_over_jobs.sql",
        old="\n      AND (SELECT elected_at FROM awa.leader) < now() - coalesce(q.staleness, $3::interval)",
        new="",
        tests=(INTEGRATION + "test_claim.py",),
    ),
    # Connections lead to the newest primary.
    Mutant(
        name="silent-host-hides-the-last-one",
        file="awa_py/db/servers.py",
        old="await asyncio.wait([task], timeout=OTHER_HOSTS_S)",
        new="await asyncio.wait([task])",
        tests=(INTEGRATION + "test_servers.py",),
    ),
    Mutant(
        name="silent-host-hides-the-others",
        file="awa_py/db/servers.py",
        old="            timeout_s = OTHER_HOSTS_S\n",
        new="            timeout_s = None\n",
        tests=(INTEGRATION + "test_servers.py::test_silent_host_delays_a_connection_only_for_a_moment",),
    ),
    Mutant(
        name="former-primary-is-accepted",
        file="awa_py/db/servers.py",
        old="if server.timeline < newest:",
        new="if False:",
        tests=(INTEGRATION + "test_failover.py",),
    ),
    Mutant(
        name="former-primary-keeps-its-sessions",
        file="awa_py/db/servers.py",
        old="loop.call_soon_threadsafe(older.terminate)",
        new="loop.call_soon_threadsafe(older.is_closed)",
        tests=(INTEGRATION + "test_failover.py",),
    ),
    Mutant(
        name="first-host-instead-of-the-newest",
        file="awa_py/db/servers.py",
        old="            best = answer\n",
        new="            pass\n",
        tests=(INTEGRATION + "test_failover.py",),
    ),
)
