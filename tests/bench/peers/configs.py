"""The contenders: how each is started, and with which configuration."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderConfig:
    """A contender with one configuration."""

    name: str
    label: str
    runtime: str  # "awa", "own" (this interpreter), "pip" or "npm"
    program: str  # a module of `contenders`, or a script there
    package: str = ""  # the name of its pins, if it has its own installation
    extra: dict[str, Any] = field(default_factory=dict)
    configuration: str

    @property
    def is_peer(self) -> bool:
        return self.runtime in ("pip", "npm")


CONTENDERS = {
    config.name: config
    for config in (
        ContenderConfig(
            name="awa",
            label="awa",
            runtime="awa",
            program="awa",
            configuration="Every setting at its default, history kept, handlers are coroutines.",
        ),
        ContenderConfig(
            name="awa-discard",
            label="awa, retention 0",
            runtime="awa",
            program="awa",
            extra={"discard": True},
            configuration="The same, but a completed job is deleted, as graphile-worker does.",
        ),
        ContenderConfig(
            name="awa-batch",
            label="awa, batch handlers",
            runtime="awa",
            program="awa",
            extra={"batch": True},
            configuration='A handler of `batch=500, linger="50ms"` receives up to 500 jobs in a call. History kept.',
        ),
        ContenderConfig(
            name="awa-connections",
            label="awa, 32 connections",
            runtime="own",
            program="awa_connections",
            configuration="Each of the 32 producers enqueues through its own connection (`connection=`).",
        ),
        ContenderConfig(
            name="limit",
            label="the limit (plain SQL)",
            runtime="own",
            program="limit",
            configuration=(
                "asyncpg on awa's own tables: one connection claims 500 at a time (asynchronous commit), another one "
                "completes them, overlapping; no handlers. Enqueues are INSERT … RETURNING, one connection per "
                "producer, and COPY of tuples built beforehand."
            ),
        ),
        ContenderConfig(
            name="graphile",
            label="graphile-worker, tuned",
            runtime="npm",
            program="graphile_worker.mjs",
            package="graphile-worker",
            extra={"tuned": True},
            configuration=(
                "`concurrentJobs` 24, `localQueue.size` 5,000 (also the size of a claim; at most a twentieth of the "
                "jobs of a drain), `completeJobBatchDelay` and `failJobBatchDelay` 25 ms, a pool of 10. Finished jobs "
                "are deleted: it has no history."
            ),
        ),
        ContenderConfig(
            name="graphile-default",
            label="graphile-worker, as documented",
            runtime="npm",
            program="graphile_worker.mjs",
            package="graphile-worker",
            extra={"tuned": False},
            configuration="The defaults: no local queue and no batching; `concurrentJobs` 24, a pool of 25.",
        ),
        ContenderConfig(
            name="pgqueuer",
            label="pgqueuer",
            runtime="pip",
            program="pgqueuer",
            package="pgqueuer",
            configuration=(
                "asyncpg, uvloop, `batch_size` 500 (also the size of its log buffer), a pool of 10; one plain "
                "connection for the single producer. Finished jobs move to its log table, without their payload."
            ),
        ),
        ContenderConfig(
            name="pg-boss",
            label="pg-boss",
            runtime="npm",
            program="pg_boss.mjs",
            package="pg-boss",
            configuration=(
                "Ten workers with batches of 1,000 jobs in one process, polling every 0.5 s, its minimum: it has no "
                "notifications. Supervision and schedules off. Finished jobs are kept."
            ),
        ),
        ContenderConfig(
            name="awa-pg",
            label="awa-pg",
            runtime="pip",
            program="awa_pg",
            package="awa-pg",
            configuration=(
                "Queue storage, one logical queue in 4 partitions with 512 workers and claims of up to 512 each, no "
                "deadlines, rings rotated every 10 s and 5 s, polling every 50 ms in addition to notifications, "
                "uvloop. History kept."
            ),
        ),
        ContenderConfig(
            name="chancy",
            label="chancy",
            runtime="pip",
            program="chancy",
            package="chancy",
            configuration=(
                "The executor for asyncio, concurrency 1,000, `eager_polling`, outcomes sent every 0.1 s, psycopg "
                "with its C extension, uvloop, no default plugins. History kept."
            ),
        ),
        ContenderConfig(
            name="procrastinate",
            label="procrastinate",
            runtime="pip",
            program="procrastinate",
            package="procrastinate",
            configuration="psycopg with its C extension, uvloop, concurrency 5 on a pool of 5. History kept.",
        ),
    )
}
