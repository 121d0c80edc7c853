"""Every page that is written by a program: `python -m tests.generated` writes all, `--check` names those that are out of date.

A page is a function of catalogues in the code, so that it cannot say something else than they do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from highwater.api.cli import authorization
from highwater.deploy import dependencies, notices
from highwater.deploy.site import decisions, events, kafka_access
from tests import ROOT, origins, requirements


def _requirements() -> str:
    return requirements.make_page(requirements.read_lines(), requirements.read_proofs())


def _origins() -> str:
    return origins.make_page(origins.read_rows(), origins.record_paths())


def _audit() -> str:
    return dependencies.render(json.loads(dependencies.ANSWER.read_text("utf-8")))


# What each says comes from the module beside it.
PAGES: dict[Path, Callable[[], str]] = {
    authorization.PAGE: authorization.page,
    decisions.PAGE: decisions.page,
    dependencies.PAGE: _audit,
    events.PAGE: events.page,
    kafka_access.PAGE: kafka_access.page,
    notices.PAGE: notices.page,
    origins.PAGE: _origins,
    requirements.PAGE: _requirements,
}


def outdated() -> Iterator[Path]:
    """The pages that differ from what would be written."""
    for path, make in PAGES.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != make():
            yield path


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; the exit status."""
    if "--check" in arguments:
        names = [str(path.relative_to(ROOT)) for path in outdated()]
        sys.stderr.writelines(f"{name} is out of date; run make generate\n" for name in names)
        return 1 if names else 0
    for path, make in PAGES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
