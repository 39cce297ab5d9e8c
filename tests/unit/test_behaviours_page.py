"""docs/behaviours.md agrees with the tags of the tests."""

from tests.behaviours import BEHAVIOUR, PAGE, tagged_tests, with_tests

TEXT = PAGE.read_text()
BEHAVIOURS = [found[1] for line in TEXT.splitlines() if (found := BEHAVIOUR.match(line))]


def test_every_tag_is_on_the_page() -> None:
    assert set(tagged_tests()) - set(BEHAVIOURS) == set()
    assert len(BEHAVIOURS) == len(set(BEHAVIOURS))


def test_every_built_behaviour_has_a_test() -> None:
    planned = {found[1] for line in TEXT.splitlines() if (found := BEHAVIOUR.match(line)) and "** Planned:" in line}
    assert set(BEHAVIOURS) - set(tagged_tests()) == planned


def test_the_lists_of_tests_are_current() -> None:
    assert with_tests(TEXT, tagged_tests()) == TEXT, "run `python -m tests.behaviours`"
