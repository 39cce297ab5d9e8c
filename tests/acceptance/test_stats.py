"""`awa job show` with the history of a job, and `awa stats --since`."""

import pytest

from tests.acceptance.conftest import Awa

pytestmark = pytest.mark.integration

NARROW = {"COLUMNS": "80"}
WRONG = [
    (("stats", "--since", "soon"), '"soon" is not a duration'),
    (("stats", "--since", "30s"), "--since must be at least 1m"),
    (("stats", "--since", "1h", "--watch"), "--watch cannot be used with --since"),
    (("stats", "--queue", "email"), "--queue and --kind can only be used with --since"),
    (("stats", "--kind", "greet"), "--queue and --kind can only be used with --since"),
]


def work(awa: Awa) -> None:
    """Run a worker. Its log contains the traceback of a handler."""
    worker = awa.run("worker", "tasks:app", "-q", "default", "-q", "email", "--burst", "--no-maintenance")
    assert worker.code == 0, worker.err


@pytest.fixture
def worked(awa: Awa) -> Awa:
    """Complete three jobs and let one fail."""
    awa.ok("enqueue", "greet", '{"name": "me"}', "--app", "tasks:app", "--count", "3")
    awa.ok("enqueue", "break_down", "--app", "tasks:app")
    work(awa)
    assert awa.ok("maintenance", "--once", "rollup").out == "rollup: 2 metric buckets\n"
    return awa


class TestShow:  # F15
    def test_job_show_prints_the_history(self, worked: Awa) -> None:
        lines = worked.ok("job", "show", "4", env=NARROW).out.splitlines()
        assert lines[-4].split() == ["when", "(UTC)", "event", "after", "attempt", "worker", "detail"]
        assert [line.split()[2] for line in lines[-3:]] == ["enqueued", "started", "failed"]
        assert lines[-1].endswith("ValueError: it broke")
        assert max(map(len, lines)) <= 80

    def test_job_show_json_contains_the_history(self, worked: Awa) -> None:
        job = worked.ok("job", "show", "1", "--json").json
        assert job["state"] == "completed"
        enqueued, started, completed = job["timeline"]
        assert enqueued.keys() == {"at", "event", "attempt", "worker_id", "detail", "after_s"}
        assert (enqueued["event"], enqueued["at"], enqueued["after_s"]) == ("enqueued", job["created_at"], None)
        assert (started["event"], started["at"], started["attempt"]) == ("started", job["attempted_at"], 1)
        assert (completed["event"], completed["worker_id"]) == ("completed", job["worker_id"])
        assert completed["after_s"] > 0

    def test_history_of_a_retried_job_is_kept(self, worked: Awa) -> None:
        worked.ok("job", "retry", "4")
        events = [step["event"] for step in worked.ok("job", "show", "4", "--json").json["timeline"]]
        assert events == ["enqueued", "started", "failed", "requeued"]


class TestSince:  # F16
    def test_stats_since_has_a_line_for_each_queue_and_kind(self, worked: Awa) -> None:
        lines = worked.ok("stats", "--since", "1h", env=NARROW).out.splitlines()
        assert lines[0].split() == ["queue", "kind", "jobs", "failed", "wait", "p50/95/99", "run", "p50/95/99"]
        assert lines[1].split()[:5] == ["default", "break_down", "1", "1", "100.0%"]
        assert lines[2].split()[:4] == ["email", "greet", "3", "0"]
        assert lines[4].split() == ["queue", "kind", "mean/s", "peak/s", "throughput"]
        assert all("█" in line for line in lines[5:7])
        assert lines[-1].endswith("UTC, 2m per bar; rolled up every minute")
        assert max(map(len, lines)) <= 80

    def test_queue_with_several_kinds_has_a_total_line(self, worked: Awa) -> None:
        worked.ok("enqueue", "digest", "--app", "tasks:app")
        work(worked)
        worked.ok("maintenance", "--once", "rollup")
        lines = worked.ok("stats", "--since", "1h").out.splitlines()
        assert [line.split()[:3] for line in lines[1:4]] == [
            ["default", "(all)", "2"],
            ["default", "break_down", "1"],
            ["default", "digest", "1"],
        ]

    def test_sparkline_is_ascii_without_utf_8(self, worked: Awa) -> None:
        plain, _ = worked.start("stats", "--since", "1h", env={"PYTHONIOENCODING": "ascii"}).communicate(timeout=60)
        assert "@" in plain
        assert plain.isascii()

    def test_stats_since_json_contains_each_minute(self, worked: Awa) -> None:
        found = worked.ok("stats", "--since", "1h", "--json").json
        assert found.keys() == {"since", "until", "queues", "kinds", "buckets"}
        assert [(each["queue"], each["jobs"]) for each in found["queues"]] == [("default", 1), ("email", 3)]
        broken, greeted = found["kinds"]
        assert (broken["kind"], broken["failed"], broken["failed_share"]) == ("break_down", 1, 1.0)
        assert (greeted["kind"], greeted["completed"], greeted["retried"]) == ("greet", 3, 0)
        assert greeted["jobs_per_s"] == pytest.approx(3 / 3600, rel=0.05)
        assert greeted["run_s"].keys() == {"p50", "p95", "p99"}
        assert sum(bucket["completed"] + bucket["failed"] for bucket in found["buckets"]) == 4
        assert found["buckets"][0].keys() >= {"at", "queue", "kind", "wait_p99", "run_p50"}

    def test_stats_since_filters_by_queue_and_kind(self, worked: Awa) -> None:
        assert len(worked.ok("stats", "--since", "1h", "--queue", "email", "--json").json["kinds"]) == 1
        assert worked.ok("stats", "--since", "1h", "--kind", "nothing", "--json").json["kinds"] == []

    def test_stats_since_without_ended_jobs_says_so(self, awa: Awa) -> None:
        assert awa.ok("stats", "--since", "90m").out == (
            "no ended job of the last 1h30m has been rolled up; the leader does this every minute\n"
        )

    def test_stats_without_since_counts_states(self, worked: Awa) -> None:
        assert worked.ok("stats", "--json").json["states"]["completed"] == 3

    @pytest.mark.parametrize(("arguments", "sentence"), WRONG)
    def test_wrong_usage_is_explained(self, awa: Awa, arguments: tuple[str, ...], sentence: str) -> None:
        answer = awa(*arguments)
        assert answer.code == 2
        assert sentence in answer.err
