"""The statements of each room by name, read from its `*.sql`; `python -m highwater.connectors.postgres.sql_files`
generates their types.

A file holds blocks that begin with `-- name: …`. The names of a room are written to its `statements.py` as a
`TypedDict`, so that mypy refuses an unknown name; `--check` fails if one is outdated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from highwater.schemas.errors import ConfigurationError

_ROOMS = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_MODULE = '''"""The statements of this folder by name, written from its `*.sql` by `highwater.connectors.postgres.sql_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from highwater.connectors.postgres.sql_files import load_statements


class Statements(TypedDict):
    """Each is the text of a statement."""

{names}


QUERIES: Final = load_statements(Path(__file__).parent, Statements)
'''

Names = TypeVar("Names")


def read_blocks(folder: Path) -> dict[str, str]:
    """Return the statements of a folder by name, in the order of its files.

    Raises:
        ConfigurationError: a name occurs twice.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.sql")):
        blocks = _BLOCK.split(path.read_text(encoding="utf-8"))[1:]
        for name, body in zip(blocks[::2], blocks[1::2], strict=True):
            if name in found:
                raise ConfigurationError(f"{path.name} names {name} a second time")
            found[name] = body.strip()
    return found


def load_statements(folder: Path, names: type[Names]) -> Names:
    """Return the statements of a folder as their type.

    Raises:
        ConfigurationError: a name occurs twice, or the type is outdated.
    """
    found = read_blocks(folder)
    if found.keys() != names.__annotations__.keys():
        raise ConfigurationError(f"{folder.name}/statements.py is out of date; run `make generate`")
    return cast("Names", found)


def render(statements: Mapping[str, str]) -> str:
    """Return the module that declares these statements."""
    return _MODULE.format(names="\n".join(f"    {name}: str" for name in statements))


def rooms() -> list[Path]:
    """Return the folders that hold statements."""
    return sorted({path.parent for path in _ROOMS.glob("*/*.sql")})


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare, the `statements.py` of each room; return the exit status."""
    stale = []
    for folder in rooms():
        path, text = folder / "statements.py", render(read_blocks(folder))
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"{folder.name}/statements.py")
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make generate`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
