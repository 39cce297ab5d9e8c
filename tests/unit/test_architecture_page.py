"""docs/architecture.md and docs/states.md name files, functions, statements and tables that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STATES = (ROOT / "docs" / "states.md").read_text()
TREE, PATH_OF_A_JOB = (PAGE.split(f"## {title}\n")[1].split("\n## ")[0] for title in ("The tree", "The way of one job"))
STEP = re.compile(r"^\| [\w ]+ \| `(awa_py/\S+)` \| (`.+?`(?:, …)?) \|", re.MULTILINE)
STATEMENTS = {path.stem for path in (ROOT / "awa_py" / "store" / "sql").glob("*.sql")}


def names(path: Path) -> set[str]:
    """Return the functions and annotated constants of a module, and the methods of its classes as Class.method."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:awa_py|cli|schema|systemd|monitoring|tests)/[\w./]*)`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_tree_has_every_package_and_module() -> None:
    tops = {
        f"awa_py/{path.name}{'/' if path.is_dir() else ''}"
        for path in (ROOT / "awa_py").iterdir()
        if path.name not in ("__init__.py", "__pycache__", "py.typed")
    }
    assert set(re.findall(r"`(awa_py/[\w./]*)`", TREE)) == tops


def test_a_job_passes_at_most_12_files_and_every_function_exists() -> None:
    steps = STEP.findall(PATH_OF_A_JOB)
    assert len(steps) == PATH_OF_A_JOB.count("\n| ") - 1  # without the header
    assert len({path for path, _ in steps}) == len(steps) <= 12
    for path, named in steps:
        assert set(re.findall(r"`([\w.]+)`", named)) <= names(ROOT / path), path


def test_every_statement_exists() -> None:
    named = set(re.findall(r"`(\w+)\.sql`", PAGE))
    for row in STATES.splitlines():
        if row.startswith("| ") and row.count("|") == 5:
            named |= set(re.findall(r"`(\w+)`", row.split("|")[4]))
    assert len(named) > 15
    assert named - STATEMENTS == set()


def test_every_table_exists() -> None:
    schema = "".join(path.read_text() for path in (ROOT / "schema").rglob("*.sql"))
    created, dropped = (set(re.findall(rf"^{verb} TABLE awa\.(\w+)", schema, re.M)) for verb in ("CREATE", "DROP"))
    rows = PAGE.split("| table | contents |")[1].split("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {name for name in created - dropped if not name.endswith("_default")}
