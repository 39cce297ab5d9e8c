"""What a command says when it fails: a sentence, never a traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import asyncpg
import typer

from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.errors import AwaError
from awa_py.text import describe

INTERRUPTED = 130
_OLD_SCHEMA = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
)


@contextmanager
def report_errors() -> Iterator[None]:
    """Ends the command with a sentence and exit code 1 where something fails that can fail."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that is gone can still be dealt with
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except AwaError as error:
        fail(str(error))
    except _OLD_SCHEMA as error:
        fail(f"the schema of awa is missing or too old: run `awa migrate` ({describe(error)})")
    except asyncpg.PostgresError as error:
        if isinstance(error, (*CONNECTION_LOST, *CONNECTION_REFUSED)):
            fail(f"the database is not available: {describe(error)}")
        fail(f"PostgreSQL refused: {describe(error)}")
    except (*CONNECTION_LOST, UnicodeError) as error:
        fail(describe(error))


def fail(sentence: str) -> NoReturn:
    """Says why on standard error, and ends with exit code 1."""
    typer.echo(f"awa: {sentence}", err=True)
    raise typer.Exit(1)
