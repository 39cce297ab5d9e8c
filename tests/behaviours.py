"""Write the lists of tests in docs/behaviours.md: `python -m tests.behaviours`.

A test, a class of tests or a whole file names a behaviour with a comment such as `# F12`.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "behaviours.md"
TAG = re.compile(r"\b[AFPDY]\d+\b")
BEHAVIOUR = re.compile(r"^- \*\*([AFPDY]\d+)\*\* ")
TEST = re.compile(r"^  - `(tests/\S+)`\n", re.MULTILINE)


@cache
def tagged_tests() -> dict[str, list[str]]:
    """Return the tests of each tag, as pytest's node ids."""
    tests: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        for line, tag in _tags(text):
            tests[tag].add("::".join([str(path.relative_to(ROOT)), *_enclosing(tree, line)]))
    return {tag: sorted(_without_nested(ids)) for tag, ids in tests.items()}


def with_tests(page: str, tests: dict[str, list[str]]) -> str:
    """Return the page with the current lists of tests."""
    entries = re.split(r"^(?=- \*\*|## )", TEST.sub("", page), flags=re.MULTILINE)
    return "".join(_with_list(entry, tests) for entry in entries)


def _with_list(entry: str, tests: dict[str, list[str]]) -> str:
    behaviour = BEHAVIOUR.match(entry)
    if not behaviour:
        return entry
    text = entry.rstrip("\n")
    lines = "".join(f"  - `{test}`\n" for test in tests.get(behaviour[1], []))
    return f"{text}\n{lines}{entry[len(text) + 1 :]}"


def _tags(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            for tag in TAG.findall(token.string):
                yield token.start[0], tag


def _enclosing(tree: ast.AST, line: int) -> list[str]:
    """Return the names of the class and the test that the line belongs to, decorators included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= line <= (node.end_lineno or first) and node.name.lower().startswith("test"):
                return [node.name, *_enclosing(node, line)]
    return []


def _without_nested(ids: set[str]) -> Iterator[str]:
    for test in ids:
        if not any(test.startswith(f"{other}::") for other in ids):
            yield test


if __name__ == "__main__":
    PAGE.write_text(with_tests(PAGE.read_text(), tagged_tests()))
