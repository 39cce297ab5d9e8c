"""Parse an EnvironmentFile= the way systemd does: NAME=value lines, quotes, comments."""

import re
from pathlib import Path

from awa_py.errors import ConfigError

# A name, quoted values, and the unquoted rest of the line. A backslash escapes the next character.
_ENTRY = re.compile(
    r"""^[ \t]* ([^\s\#;=][^=\n]*) = ((?: [ \t]* (?: '[^']*' | "(?:[^"\\]|\\.)*" ))*) ((?: [^\\\n] | \\. )*)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def read(path: Path) -> dict[str, str]:
    """Return the variables of the file, or none if it does not exist. Raise ConfigError if it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8") from error


def parse(text: str) -> dict[str, str]:
    """Return the variables. The last line of a name wins, and invalid lines are skipped."""
    variables = {}
    for name, quoted, bare in _ENTRY.findall(text):
        if _NAME.fullmatch(name.strip()):
            variables[name.strip()] = _quoted(quoted) + _bare(bare)
    return variables


def _quoted(text: str) -> str:
    return "".join(single or _unescape(double, r'["\\`$\n]') for single, double in _QUOTED.findall(text))


def _bare(text: str) -> str:
    return _unescape(text.strip(), ".")


def _unescape(text: str, escapable: str) -> str:
    """Remove backslashes before these characters. A backslash at the end of a line joins it with the next."""
    return re.sub(rf"\\({escapable})", lambda match: match[1].replace("\n", ""), text, flags=re.DOTALL)
