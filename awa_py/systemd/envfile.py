"""The file that EnvironmentFile= names, read as systemd reads it: NAME=value lines, quotes, comments."""

import re
from pathlib import Path

from awa_py.errors import ConfigError

# A name, values in quotes, and what follows them up to the end of the line; a backslash takes what comes next as it is.
_ENTRY = re.compile(
    r"""^[ \t]* ([^\s\#;=][^=\n]*) = ((?: [ \t]* (?: '[^']*' | "(?:[^"\\]|\\.)*" ))*) ((?: [^\\\n] | \\. )*)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def read(path: Path) -> dict[str, str]:
    """The variables of the file; none where there is no file. Raises ConfigError where it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8") from error


def parse(text: str) -> dict[str, str]:
    """What the lines set; the last one of a name counts, and lines that set nothing are passed over."""
    found = {}
    for name, quoted, bare in _ENTRY.findall(text):
        if _NAME.fullmatch(name.strip()):
            found[name.strip()] = _quoted(quoted) + _bare(bare)
    return found


def _quoted(text: str) -> str:
    return "".join(single or _unescaped(double, r'["\\`$\n]') for single, double in _QUOTED.findall(text))


def _bare(text: str) -> str:
    return _unescaped(text.strip(), ".")


def _unescaped(text: str, escapable: str) -> str:
    """Without the backslashes before these characters; a line that ends with one goes on in the next."""
    return re.sub(rf"\\({escapable})", lambda match: match[1].replace("\n", ""), text, flags=re.DOTALL)
