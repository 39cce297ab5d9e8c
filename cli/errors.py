"""Report the failure of a command as one sentence, without a traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import asyncpg
import typer

from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.errors import AwaError
from awa_py.text import describe, escape, redact

INTERRUPTED = 130
_SCHEMA_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
)


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn expected errors into a sentence on standard error and exit code 1."""
    try:
        yield
        sys.stdout.flush()  # here, so that a closed pipe raises inside this block
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The interpreter flushes again when it exits, and would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except AwaError as error:
        fail(str(error))
    except _SCHEMA_ERRORS as error:
        fail(f"the schema is missing or out of date: run `awa migrate` ({describe(error)})")
    except asyncpg.PostgresError as error:
        if isinstance(error, (*CONNECTION_LOST, *CONNECTION_REFUSED)):
            fail(f"the database is not available: {describe(error)}")
        fail(f"PostgreSQL reported an error: {describe(error)}")
    except (*CONNECTION_LOST, UnicodeError) as error:
        fail(describe(error))


def fail(sentence: str) -> NoReturn:
    """Print the sentence on standard error and exit with code 1."""
    typer.echo(f"awa: {escape(redact(sentence))}", err=True)
    raise typer.Exit(1)
