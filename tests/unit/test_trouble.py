"""A database that is away: said at once, then less and less often; and what an error may say."""

import logging

import asyncpg
import pytest

from awa_py.db.connections import _Trouble
from awa_py.text import describe, format_frames
from tests.clock import Clock


def test_an_hour_without_the_database_is_a_dozen_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock().qualify(monkeypatch, "awa_py.db.connections")
    trouble = _Trouble("claims")
    with caplog.at_level(logging.DEBUG):
        for _ in range(3600):
            trouble.goes_on(OSError("refused"))
            clock.now += 1
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said[:4] == [
        "claims: cannot reach the database, trying again: refused",
        "claims: cannot reach the database (for 60s), trying again: refused",
        "claims: cannot reach the database (for 3m), trying again: refused",
        "claims: cannot reach the database (for 7m), trying again: refused",
    ]
    assert len(said) == 9
    assert len(caplog.records) == 3600
    assert trouble.length == " (for 60m)"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError("no\n  route"), "no route"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("see postgresql://me:hunter2@host/db"), "see postgresql://me:***@host/db"),
        (asyncpg.UndefinedTableError('relation "awa.ready" does not exist'), 'relation "awa.ready" does not exist'),
        (
            asyncpg.InvalidTextRepresentationError('invalid input syntax for type smallint: "hunter2"'),
            "invalid input syntax for type smallint",
        ),
        (
            asyncpg.NumericValueOutOfRangeError('value "hunter2" is out of range for type integer'),
            'value "…" is out of range for type integer',
        ),
        (
            asyncpg.DataError('invalid input for query argument $4: \'{"a": "hunter2"}\' (no text)'),
            "invalid input for query argument $4",
        ),
    ],
)
def test_an_error_in_one_line_has_no_value_in_it(error: Exception, says: str) -> None:
    assert describe(error) == says


def test_postgresqls_detail_is_left_out() -> None:
    error = asyncpg.CheckViolationError('new row violates check constraint "args_is_an_object"')
    error.detail = "Failing row contains (1, hunter2)."
    assert "hunter2" in str(error)
    assert describe(error) == 'new row violates check constraint "args_is_an_object"'


def test_the_frames_of_an_error_are_places_alone() -> None:
    text = "hunter2"
    try:
        raise ValueError(text)
    except ValueError as error:
        said = format_frames(error)
    assert "raise ValueError(text)" in said
    assert text not in said
