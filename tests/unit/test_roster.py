"""Which workers somebody means."""

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
    ("name", "meant"),
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
def test_by_label_by_id_by_the_beginning_of_an_id_or_by_a_pattern(name: str, meant: list[object]) -> None:
    assert find_workers(ALL, name) == meant


def test_workers_of_one_label_are_all_meant() -> None:
    assert find_workers([ONE, replace(TWO, label="mail-worker-a")], "mail-worker-a") == [
        ONE,
        replace(TWO, label=ONE.label),
    ]


@pytest.mark.parametrize("name", ["mail", "mail-worker", "3", "", "slack-*"])
def test_whoever_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    with pytest.raises(UnknownWorker, match=f"there are mail-worker-a, mail-worker-b, {THREE.id}"):
        find_workers(ALL, name)
    with pytest.raises(UnknownWorker, match="there are none"):
        find_workers([], name)


def test_the_beginning_of_two_ids_is_not_enough() -> None:
    with pytest.raises(UnknownWorker, match=rf'"1111" may be any of {ONE.id}, {TWO.id}'):
        find_workers(ALL, "1111")


def test_not_all_of_many_are_named() -> None:
    with pytest.raises(UnknownWorker, match=r"mail-worker-9 and 5 more$"):
        find_workers([replace(ONE, label=f"mail-worker-{n}") for n in range(15)], "x")
