"""Workers that a name on the command line matches."""

from dataclasses import replace
from uuid import UUID

import pytest

from awa_py import UnknownWorker
from awa_py.observability.worker_lookup import find_workers
from tests.unit.test_demo import WORKER

ONE = replace(WORKER, id=UUID("11110000-0000-4000-8000-000000000001"), label="mail-worker-a")
TWO = replace(WORKER, id=UUID("11110000-0000-4000-8000-000000000002"), label="mail-worker-b")
THREE = replace(WORKER, id=UUID("22220000-0000-4000-8000-00000000000c"), label=None)
ALL = [ONE, TWO, THREE]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mail-worker-a", [ONE]),
        ("mail-*", [ONE, TWO]),
        ("mail-worker-b*", [TWO]),
        ("*", ALL),
        ("1111*", [ONE, TWO]),
        (str(TWO.id), [TWO]),
        ("2", [THREE]),
        ("22220000-0000-4000-8000-00000000000C", [THREE]),
    ],
)
def test_name_matches_label_id_id_prefix_or_pattern(name: str, expected: list[object]) -> None:
    assert find_workers(ALL, name) == expected


def test_label_matches_all_workers_that_have_it() -> None:
    assert find_workers([ONE, replace(TWO, label="mail-worker-a")], "mail-worker-a") == [
        ONE,
        replace(TWO, label=ONE.label),
    ]


@pytest.mark.parametrize("name", ["mail", "mail-worker", "3", "", "slack-*"])
def test_unknown_name_is_answered_with_the_known_workers(name: str) -> None:
    with pytest.raises(UnknownWorker, match=f"the workers are mail-worker-a, mail-worker-b, {THREE.id}"):
        find_workers(ALL, name)
    with pytest.raises(UnknownWorker, match="no worker is registered"):
        find_workers([], name)


def test_ambiguous_id_prefix_is_an_error() -> None:
    with pytest.raises(UnknownWorker, match=rf'several worker ids start with "1111": {ONE.id}, {TWO.id}'):
        find_workers(ALL, "1111")


def test_error_lists_at_most_ten_workers() -> None:
    with pytest.raises(UnknownWorker, match=r"mail-worker-9 and 5 more$"):
        find_workers([replace(ONE, label=f"mail-worker-{n}") for n in range(15)], "x")
