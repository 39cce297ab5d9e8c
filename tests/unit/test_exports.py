"""The names that `import awa_py as awa` exports."""

import inspect

import awa_py
from awa_py import errors

# Names that users rely on.
CONTRACT = {"App", "AwaError", "Cancel", "Context", "Fail", "Job", "Retry", "Snooze", "Throttled"}


def test_exported_names_exist_and_are_sorted() -> None:
    assert list(awa_py.__all__) == sorted(set(awa_py.__all__))
    assert all(hasattr(awa_py, name) for name in awa_py.__all__)


def test_names_of_the_contract_are_exported() -> None:
    assert set(awa_py.__all__) >= CONTRACT


def test_every_error_is_exported() -> None:
    raised = {name for name, error in vars(errors).items() if inspect.isclass(error)}
    assert set(awa_py.__all__) >= raised


def test_every_public_name_is_exported() -> None:
    public = {name for name, value in vars(awa_py).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public == set(awa_py.__all__)


def test_every_exported_name_has_a_docstring() -> None:
    assert [name for name in awa_py.__all__ if not inspect.getdoc(getattr(awa_py, name))] == []


def test_methods_of_the_contract_exist() -> None:
    app = awa_py.App()
    methods = {"job", "cron", "enqueue", "enqueue_many", "get", "result", "cancel", "retry", "work"}
    assert [name for name in methods if not callable(getattr(app, name))] == []
    job = {"enqueue", "options", "new"}
    assert [name for name in job if not callable(getattr(awa_py.JobDefinition, name))] == []
    assert all(hasattr(awa_py.Context, name) for name in ("job", "cancelled", "wait_cancelled", "progress"))
