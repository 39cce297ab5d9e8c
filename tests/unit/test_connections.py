"""All connections are opened in one place, which knows about several hosts and former primaries."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPENING = {"connect", "create_pool"}
ALLOWED = {
    "awa_py/db/servers.py": {"connect"},
    "awa_py/db/database.py": {"create_pool"},  # its connections come from servers.py
}


def calls_of_asyncpg(path: Path) -> set[str]:
    """Return the names of asyncpg's functions that open connections and that the file calls."""
    return {
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "asyncpg"
        and node.func.attr in OPENING
    }


def test_connections_are_opened_in_one_place() -> None:
    files = [path for folder in ("awa_py", "cli") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): calls for path in files if (calls := calls_of_asyncpg(path))}
    assert found == ALLOWED
