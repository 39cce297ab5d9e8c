"""The tree of errors in the docstring of awa_py.errors is complete."""

import inspect
import re

import pytest

from awa_py import errors
from awa_py.errors import AwaError

CLASSES = {name: error for name, error in vars(errors).items() if inspect.isclass(error)}


def documented_tree() -> dict[str, str]:
    """Return the parent of each class in the docstring."""
    parents = {0: "AwaError"}
    found = {}
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        match = re.match(r"((?:│   |    )*)[├└]── (\w+)", line)
        if match:
            depth = len(match[1]) // 4 + 1
            parents[depth] = match[2]
            found[match[2]] = parents[depth - 1]
    return found


def test_tree_in_the_docstring_shows_every_error_under_its_parent() -> None:
    assert documented_tree() == {
        name: error.__mro__[1].__name__ for name, error in CLASSES.items() if error is not AwaError
    }


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_a_docstring(name: str) -> None:
    assert issubclass(CLASSES[name], AwaError)
    assert CLASSES[name].__doc__


def test_errors_also_derive_from_builtin_errors() -> None:
    for error in (errors.ConfigError, errors.InvalidJob, errors.InvalidDuration, errors.InvalidSchedule):
        assert issubclass(error, ValueError)
    for missing in (errors.JobNotFound, errors.UnknownKind, errors.UnknownSchedule):
        assert issubclass(missing, LookupError)
    assert issubclass(errors.ResultTimeout, TimeoutError)
