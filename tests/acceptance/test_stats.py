"""`awa job show` and `awa stats --since`: what happened to a job, and what the last hours were like."""

import pytest

from tests.acceptance.conftest import Awa

pytestmark = pytest.mark.integration

NARROW = {"COLUMNS": "80"}
WRONG = [
    (("stats", "--since", "soon"), '"soon" is not a duration'),
    (("stats", "--since", "30s"), "--since is 1m or more"),
    (("stats", "--since", "1h", "--watch"), "use either --since or --watch"),
    (("stats", "--queue", "email"), "--queue and --kind go with --since"),
    (("stats", "--kind", "greet"), "--queue and --kind go with --since"),
]


def work(awa: Awa) -> None:
    """As a process of its own: the traceback of a handler is no mistake of the command."""
    worker = awa.start("worker", "tasks:app", "-q", "default", "-q", "email", "--burst", "--no-maintenance")
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log


@pytest.fixture
def worked(awa: Awa) -> Awa:
    """Three jobs are done, and one has failed."""
    awa.ok("enqueue", "greet", '{"name": "me"}', "--app", "tasks:app", "--count", "3")
    awa.ok("enqueue", "break_down", "--app", "tasks:app")
    work(awa)
    assert awa.ok("maintenance", "--once", "rollup").out == "rollup: 2 rows changed\n"
    return awa


class TestShow:  # F15
    def test_the_history_is_there_step_by_step(self, worked: Awa) -> None:
        lines = worked.ok("job", "show", "4", env=NARROW).out.splitlines()
        assert lines[-4].split() == ["when", "(UTC)", "event", "after", "attempt", "worker", "detail"]
        assert [line.split()[2] for line in lines[-3:]] == ["enqueued", "started", "failed"]
        assert lines[-1].endswith("ValueError: it broke")
        assert max(map(len, lines)) <= 80

    def test_as_json_it_is_a_list_beside_the_columns(self, worked: Awa) -> None:
        job = worked.ok("job", "show", "1", "--json").json
        assert job["state"] == "completed"
        enqueued, started, completed = job["timeline"]
        assert enqueued.keys() == {"at", "event", "attempt", "worker_id", "detail", "after_s"}
        assert (enqueued["event"], enqueued["at"], enqueued["after_s"]) == ("enqueued", job["created_at"], None)
        assert (started["event"], started["at"], started["attempt"]) == ("started", job["attempted_at"], 1)
        assert (completed["event"], completed["worker_id"]) == ("completed", job["worker_id"])
        assert completed["after_s"] > 0

    def test_a_retried_job_shows_what_was_before(self, worked: Awa) -> None:
        worked.ok("job", "retry", "4")
        events = [step["event"] for step in worked.ok("job", "show", "4", "--json").json["timeline"]]
        assert events == ["enqueued", "started", "failed", "requeued"]


class TestSince:  # F16
    def test_a_line_each_queue_and_kind(self, worked: Awa) -> None:
        lines = worked.ok("stats", "--since", "1h", env=NARROW).out.splitlines()
        assert lines[0].split() == ["queue", "kind", "jobs", "failed", "wait", "50/95/99%", "run", "50/95/99%"]
        assert lines[1].split()[:5] == ["default", "break_down", "1", "1", "100.0%"]
        assert lines[2].split()[:4] == ["email", "greet", "3", "0"]
        assert lines[4].split() == ["queue", "kind", "per", "s", "at", "most", "throughput"]
        assert all("█" in line for line in lines[5:7])
        assert lines[-1].endswith("UTC, 2m a bar; rolled up every minute")
        assert max(map(len, lines)) <= 80

    def test_a_queue_of_several_kinds_has_a_line_of_its_own(self, worked: Awa) -> None:
        worked.ok("enqueue", "digest", "--app", "tasks:app")
        work(worked)
        worked.ok("maintenance", "--once", "rollup")
        lines = worked.ok("stats", "--since", "1h").out.splitlines()
        assert [line.split()[:3] for line in lines[1:4]] == [
            ["default", "(all)", "2"],
            ["default", "break_down", "1"],
            ["default", "digest", "1"],
        ]

    def test_without_utf_8_the_bars_are_plain(self, worked: Awa) -> None:
        plain, _ = worked.start("stats", "--since", "1h", env={"PYTHONIOENCODING": "ascii"}).communicate(timeout=60)
        assert "@" in plain
        assert plain.isascii()

    def test_as_json_with_the_minutes(self, worked: Awa) -> None:
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

    def test_only_of_a_queue_or_a_kind(self, worked: Awa) -> None:
        assert len(worked.ok("stats", "--since", "1h", "--queue", "email", "--json").json["kinds"]) == 1
        assert worked.ok("stats", "--since", "1h", "--kind", "nothing", "--json").json["kinds"] == []

    def test_where_nothing_ended_it_says_so(self, awa: Awa) -> None:
        assert awa.ok("stats", "--since", "90m").out == (
            "nothing that ended in the last 1h30m is in the roll-up yet; it is written every minute\n"
        )

    def test_without_since_it_is_as_it_was(self, worked: Awa) -> None:
        assert worked.ok("stats", "--json").json["states"]["completed"] == 3

    @pytest.mark.parametrize(("arguments", "sentence"), WRONG)
    def test_wrong_usage_is_told(self, awa: Awa, arguments: tuple[str, ...], sentence: str) -> None:
        answer = awa(*arguments)
        assert answer.code == 2
        assert sentence in answer.err
