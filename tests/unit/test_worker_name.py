"""The label of a worker."""

from uuid import UUID, uuid4

import pytest

from awa_py import ConfigError, WorkerName
from awa_py.model.worker_name import short_id

WORKER = UUID("00000000-0000-4000-8000-000000000001")


@pytest.mark.parametrize(
    ("parts", "label"),
    [
        ({"prefix": "mail", "version": "1.4", "id": "a"}, "mail-worker-1.4-a"),
        ({"prefix": "mail", "id": "a"}, "mail-worker-a"),
        ({"prefix": "mail", "version": "1.4"}, f"mail-worker-1.4-{short_id(WORKER)}"),
        ({"version": "1.4", "id": "a"}, None),
        ({}, None),
        ({"prefix": "  ", "id": "a"}, None),
        ({"prefix": " mail ", "version": "", "id": " "}, f"mail-worker-{short_id(WORKER)}"),
    ],
)
def test_label_consists_of_prefix_version_and_id(parts: dict[str, str], label: str | None) -> None:  # F2 F3
    assert WorkerName(**parts).label(WORKER) == label


def test_short_id_has_four_hex_digits_and_depends_only_on_the_worker_id() -> None:  # F3
    ids = [uuid4() for _ in range(100)]
    assert all(len(short_id(each)) == 4 and int(short_id(each), 16) >= 0 for each in ids)
    assert [short_id(UUID(str(each))) for each in ids] == [short_id(each) for each in ids]
    assert len({short_id(each) for each in ids}) > 90


def test_worker_name_comes_from_the_environment_and_blank_variables_count_as_unset() -> None:  # F2
    environ = {"AWA_WORKER_PREFIX": "mail", "AWA_WORKER_VERSION": " ", "AWA_WORKER_ID": "7"}
    assert WorkerName.from_env(environ) == WorkerName(prefix="mail", id="7")
    assert WorkerName.from_env({}) == WorkerName()


def test_each_process_has_its_own_label() -> None:  # F3
    given = WorkerName(prefix="mail", id="a")
    assert [given.numbered(n).label(WORKER) for n in (1, 2)] == ["mail-worker-a-1", "mail-worker-a-2"]
    automatic = WorkerName(prefix="mail")
    assert automatic.numbered(1) == automatic


@pytest.mark.parametrize("part", ["two words", "a,b", "mail*", "x" * 61, "a\x00b"])
def test_part_with_spaces_or_patterns_is_refused(part: str) -> None:
    with pytest.raises(ConfigError, match="the worker's version"):
        WorkerName(prefix="mail", version=part)
