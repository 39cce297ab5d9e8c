"""A planted mistake in a statement is one of meaning. PostgreSQL refuses others, and any test would notice that."""

import pytest

from awa_py.store.session import Session, render
from tests.mutants.__main__ import ROOT
from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import SQL, Mutant

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.file.startswith(SQL)], ids=lambda mutant: mutant.name
)
async def test_statement_with_a_mistake_prepares_with_the_same_values(session: Session, mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    correct = await session.connection.prepare(render(text, session.schema))
    wrong = await session.connection.prepare(render(mutant.plant(text), session.schema))
    assert wrong.get_parameters() == correct.get_parameters()
