# make demo: see it work · make test, make chaos: run the tests · make check: run the linters
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test chaos fuzz mutants check format snapshot bench-peers bench-durable clean

demo: .venv/installed
	$(BIN)/awa demo

test: .venv/installed
	$(BIN)/pytest

# kill, freeze and restart real processes
chaos: .venv/installed
	$(BIN)/pytest -m chaos

# try ten times as many odd inputs as the tests do, and other ones each time
fuzz: .venv/installed
	AWA_TEST_FUZZ=10 $(BIN)/pytest -k fuzz

# plant one-line mistakes and see that the tests notice each, about 15 minutes
mutants: .venv/installed
	$(BIN)/python -m tests.mutants $(ARGS)

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# after a new migration: what `awa doctor` expects to find in a database
snapshot: .venv/installed
	$(BIN)/python -m tests.snapshot

# compare awa with other queues, about 40 minutes; ARGS=--quick runs a tenth of the jobs
bench-peers: .venv/installed
	$(BIN)/python -m tests.bench.peers $(ARGS)

# compare durable jobs with DBOS and Absurd, about 5 minutes
bench-durable: .venv/installed
	$(BIN)/python -m tests.bench.durable $(ARGS)

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
