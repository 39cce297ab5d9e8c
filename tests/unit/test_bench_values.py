"""The calculations and the output of `awa bench`, without a database."""

import io
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from awa_cli.bench import cpu, suite
from awa_cli.bench.costs import Costs, ServerSettings
from awa_cli.bench.drain import DrainOptions
from awa_cli.bench.handler_counter import HandlerCounter
from awa_cli.bench.latency import arrivals
from awa_cli.bench.report import Report, percentiles, show_all, show_one
from awa_cli.bench.workload import Bench, batch_size, batches, random_argument
from awa_cli.progress import Progress, line

from awa_py.errors import ConfigError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


class TestHandlerCounter:
    def run(self, clock: Clock, counter: HandlerCounter, *handlers: tuple[float, int]) -> None:
        for at, jobs in handlers:
            clock.now = at
            counter.add(jobs)

    def test_time_runs_from_the_first_handler_to_the_durable_end(self, clock: Clock) -> None:
        counter = HandlerCounter(3)
        self.run(clock, counter, (100, 1), (101, 1))
        assert not counter.total_reached.is_set()
        self.run(clock, counter, (102, 1))
        assert counter.total_reached.is_set()
        assert counter.seconds(104) == 4

    def test_each_third_has_its_own_rate(self, clock: Clock) -> None:
        counter = HandlerCounter(9)
        self.run(clock, counter, *((100 + n * 0.5, 1) for n in range(3)), *((101 + n, 1) for n in range(1, 4)))
        self.run(clock, counter, *((104 + n, 1) for n in range(3)))
        assert counter.thirds(110) == [3.0, 1.0, 0.5]

    def test_third_that_a_batch_skips_has_no_rate(self, clock: Clock) -> None:
        counter = HandlerCounter(6)
        self.run(clock, counter, (100, 5), (101, 1))
        assert counter.total_reached.is_set()
        assert counter.thirds(102) == [None, None, 0.5]

    def test_job_that_runs_twice_is_counted_without_harm(self, clock: Clock) -> None:
        counter = HandlerCounter(2)
        self.run(clock, counter, (100, 1), (101, 1), (102, 1))
        assert counter.count == 3
        assert counter.seconds(103) == 3


def test_percentiles_are_measured_values() -> None:
    assert percentiles([float(n) for n in range(100, 0, -1)]) == {
        "p50_ms": 50,
        "p95_ms": 95,
        "p99_ms": 99,
        "max_ms": 100,
    }
    assert percentiles([-1.5]) == {"p50_ms": -1.5, "p95_ms": -1.5, "p99_ms": -1.5, "max_ms": -1.5}


def test_arrivals_are_random_but_the_same_in_each_run() -> None:
    times = arrivals(500, 10)
    assert times == arrivals(500, 10) == sorted(times)
    assert 4_700 < len(times) < 5_300
    assert times[-1] < 10
    gaps = {round(after - before, 6) for before, after in pairwise(times)}
    assert len(gaps) > 1_000
    assert len(arrivals(0.001, 0.1)) == 1


def test_batches_cover_all_numbers_once() -> None:
    assert [n for numbers in batches(25, 10) for n in numbers] == list(range(25))
    assert max(map(len, batches(25, 10))) == 10
    assert batches(0, 10) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def test_line_shows_the_progress(self) -> None:
        assert line("drain", 20_000, 10_000) == f"drain {'━' * 15}{'╌' * 15} 10,000 of 20,000"
        assert line("drain", 3, 5).endswith(" 3 of 3")
        assert (line("retry", 0, 0), line("retry", 0, 1500)) == ("retry …", "retry … 1,500")

    def test_bar_is_drawn_and_erased_on_a_terminal(self) -> None:
        terminal = Terminal()
        with Progress(wanted=True, stream=terminal).bar("drain", 10, lambda: 10):
            pass
        assert "10 of 10" in terminal.getvalue()
        assert terminal.getvalue().endswith("\r\x1b[K")

    @pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO(), True), (Terminal(), False)])
    def test_bar_is_not_drawn_elsewhere_or_if_unwanted(self, stream: io.StringIO, wanted: bool) -> None:
        with Progress(wanted=wanted, stream=stream).bar("drain", 10, lambda: 10):
            pass
        assert stream.getvalue() == ""


def report(workload: str, figures: dict[str, Any], server_us: float | None = 40.0, **options: Any) -> Report:
    return Report(
        workload=workload,
        options=options,
        jobs=20_000,
        figures=figures,
        costs=Costs(
            wal_bytes_per_job=881.2,
            transactions_per_job=0.0069,
            cpu_us_per_job={"client": 17.4, "server": server_us},
            dead_tuples_per_job=2.0,
        ),
        server=ServerSettings(server="18.4", fsync=True, synchronous_commit=False),
    )


DRAIN = report("drain", {"seconds": 1.5, "jobs_per_s": 13_333.3, "thirds": [13_000.0, None, 14_000.0]}, pinned=True)
STEADY = report("steady", {"kept_up": False, "p50_ms": 0.5, "p95_ms": 1, "p99_ms": 2.25, "max_ms": 3}, None, rate=500.0)


class TestReport:
    @pytest.fixture(autouse=True)
    def no_terminal_width(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)

    def test_table_has_a_row_for_each_workload(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_all([DRAIN, STEADY], as_json=False)
        head, drain, steady, *rest = capsys.readouterr().out.splitlines()
        assert head.split("  ")[0] == "workload"
        assert head.split()[1:] == ["jobs", "result", "WAL", "B", "tx", "CPU", "µs", "dead"]
        assert drain.split() == ["drain", "pinned", "20,000", "13,333", "jobs/s", "881", "0.007", "17+40", "2.00"]
        assert "p50 0.50 p99 2.25 ms, backlog" in steady
        assert "17+?" in steady
        assert rest[-1] == "PostgreSQL 18.4, fsync on, synchronous_commit off"

    def test_table_fits_80_columns(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        costs = Costs(
            wal_bytes_per_job=1234.5,
            transactions_per_job=12.3456,
            cpu_us_per_job={"client": 1234.5, "server": 1234.5},
            dead_tuples_per_job=2.345,
        )
        slow = replace(STEADY, costs=costs, figures={**STEADY.figures, "kept_up": True, "p99_ms": 12.345})
        many = report("enqueue", {"jobs_per_s": 123456.7}, mode="transaction", worker=False)
        show_all([slow, many], as_json=False)
        assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())

    def test_single_workload_is_shown_with_all_values(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_one(DRAIN, as_json=False)
        shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
        assert shown["thirds"].strip() == "13,000, ?, 14,000 jobs/s"
        assert shown["CPU per job"].strip() == "client 17 µs, server 40 µs"
        assert "fsync on, synchronous_commit off" in shown["server"]

    def test_name_of_a_workload_repeats_its_options(self) -> None:
        assert report("drain", {}, max_workers=7, sync=True).name == "drain --max-workers 7 --sync"

    def test_label_of_a_workload_leaves_values_out(self) -> None:
        assert report("drain", {}, argument_bytes=1000, sync=True).label == "drain argument bytes sync"
        assert report("enqueue", {}, mode="producers", producers=32).label == "enqueue producers"


class TestDrainOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"batch": True, "sync": True},
            {"processes": 2, "sync": True},
            {"processes": 2, "queues": 2},
            {"processes": 2, "discard": True},
            {"max_workers": 1, "queues": 2},
        ],
    )
    def test_options_that_exclude_each_other_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="--"):
            DrainOptions(**options)

    def test_report_names_only_options_that_were_chosen(self) -> None:
        assert DrainOptions(queues=3, sync=True).as_shown() == {"queues": 3, "sync": True}


class TestArgument:
    def test_argument_has_the_wanted_length_and_is_the_same_in_each_run(self) -> None:
        assert {len(random_argument(size)["text"]) for size in (1, 31, 32, 33, 1000)} == {1, 31, 32, 33, 1000}
        assert random_argument(100) == random_argument(100)
        assert random_argument(0) == {}

    def test_large_arguments_are_enqueued_in_smaller_calls(self) -> None:
        assert batch_size(0) == batch_size(1_000) == 10_000
        assert batch_size(100_000) == 200
        assert batch_size(10**9) == 1


class TestCpu:
    def test_busy_process_uses_cpu_time(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
            try:
                before = cpu.used_ns(child.pid)
                deadline = time.monotonic() + 30
                while (now := cpu.used_ns(child.pid)) == before and time.monotonic() < deadline:
                    time.sleep(0.01)
            finally:
                child.kill()
        assert before is not None
        assert now is not None
        assert now > before

    def test_ended_process_has_no_cpu_time(self) -> None:
        child = subprocess.Popen(["true"])
        child.wait()
        assert cpu.used_ns(child.pid) is None
        assert cpu.used_with_children_ns(child.pid) is None

    def test_postmaster_of_another_process_is_none(self) -> None:
        assert cpu.find_postmaster(os.getpid()) is None
        assert cpu.find_postmaster(2**22 + 1) is None


class TestSuite:
    async def test_failed_workload_does_not_stop_the_others(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def works(bench: object) -> Report:
            return DRAIN

        async def fails(bench: object) -> Report:
            raise ConfigError("something is wrong")

        def workloads(**_: object) -> dict[str, Any]:
            return {"drain": works, "steady": fails, "latency": works}

        monkeypatch.setattr(suite, "workloads", workloads)
        reports, failures = await suite.run_all(Bench("", Progress(wanted=False)), quick=True)
        assert (reports, failures) == ([DRAIN, DRAIN], 1)
        assert capsys.readouterr().err == "awa: steady: something is wrong\n"

    def test_quick_runs_a_tenth_of_the_jobs(self) -> None:
        whole: dict[str, Any] = suite.workloads(quick=False)
        tenth: dict[str, Any] = suite.workloads(quick=True)
        assert whole.keys() == tenth.keys()
        assert tenth["drain"].keywords["jobs"] * 10 == whole["drain"].keywords["jobs"]
