"""What the text of an error contains, and what it leaves out."""

import asyncpg
import pytest

from awa_py.text import describe, format_frames


@pytest.mark.parametrize(
    ("error", "text"),
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
def test_described_error_contains_no_value(error: Exception, text: str) -> None:
    assert describe(error) == text


def test_described_error_leaves_out_the_detail_of_postgresql() -> None:
    error = asyncpg.CheckViolationError('new row violates check constraint "args_is_an_object"')
    error.detail = "Failing row contains (1, hunter2)."
    assert "hunter2" in str(error)
    assert describe(error) == 'new row violates check constraint "args_is_an_object"'


def test_frames_contain_places_and_not_the_text_of_the_error() -> None:
    text = "hunter2"
    try:
        raise ValueError(text)
    except ValueError as error:
        said = format_frames(error)
    assert "raise ValueError(text)" in said
    assert text not in said
