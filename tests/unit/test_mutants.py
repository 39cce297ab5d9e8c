"""Every mistake of `make mutants` can still be planted, and the tests that it names exist."""

from itertools import combinations

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mistake_can_be_planted(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert mutant.plant(text) != text
    for test in mutant.tests:
        file, *names = test.split("::")
        content = (ROOT / file).read_text()
        for name in names:
            assert f"class {name}" in content or f"def {name}(" in content


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_each_mistake_is_planted_once() -> None:
    pairs = [
        (mutant.name, other.name)
        for mutant, other in combinations(MUTANTS, 2)
        if mutant.file == other.file and (mutant.old in other.old or other.old in mutant.old)
    ]
    assert pairs == []
