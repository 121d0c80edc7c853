"""Writes `THIRD_PARTY.md`: the third-party packages of Highwater, with their licences.

    python -m highwater.deploy.notices

Invariant: it names every package of both locks once. Licences are those of `dependencies.json`, which an audit renews;
contents under another licence than the package's own (a Java runtime, fonts, a model) are its entry `carried`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from highwater.deploy.dependencies import ANSWER, ROOT

PAGE = ROOT / "THIRD_PARTY.md"
_WIDTH = 140
# How packages write the most common licences; SPDX's name for each.
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache2": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The MIT License": "MIT",
}
_HEAD = """\
# Third-party notices

<!-- Written by `python -m highwater.deploy.notices` from deploy/dependencies.json; do not edit. -->

Highwater is under the Apache License 2.0 ([LICENSE](LICENSE)). Its repository and its wheel contain no code of the packages
below: `make install` and pip fetch them, and the container image of `deploy/Dockerfile` contains those of `requirements.lock` and
the model. Each package brings its own licence text; if you distribute an image, you distribute these texts with it.
[docs/dependencies.md](docs/dependencies.md) lists known vulnerabilities; `python -m highwater.deploy.sbom` prints a software bill
of materials.

## Programs, fonts and models that packages carry

| in the package | is | under | note |
|---|---|---|---|
"""
_SAMPLE = """
The bundled sample (`api/sample/`) holds the English Premier League 2018/19 of openfootball/football.json, which is in the public
domain (CC0-1.0), and subjects of commits of 20 public projects with their addresses.
"""


def spdx_of(licence: str) -> str:
    """Return the usual name of a declared licence; unchanged if there is none."""
    return _SPDX.get(licence, licence)


def render(answer: Mapping[str, Any]) -> str:
    """Return the page for an answer of the audit."""
    versions = dict(name.rsplit("@", 1) for name in answer["packages"])
    lines = [
        f"| {package} {versions[package]} | {one['name']} {one.get('version', '')}".rstrip()
        + f" | {one['licence']} | {one['note']} |"
        for package, carried in answer["carried"].items()
        for one in carried
    ]
    page = _HEAD + "\n".join(lines) + "\n" + _SAMPLE
    page += (
        "\n## Licences that ask for more than a notice\n\n| package | licence | why it may be used |\n|---|---|---|\n"
    )
    by_package = {name.rpartition("@")[0]: spdx_of(licence) for name, licence in answer["packages"].items()}
    page += "".join(
        f"| {name} {versions[name]} | {by_package[name]} | {why} |\n"
        for name, why in sorted(answer["licence_exceptions"].items())
    )
    return page + "\n## All packages, by licence\n" + "".join(_groups(answer["packages"]))


def _groups(packages: Mapping[str, str]) -> list[str]:
    by_licence: dict[str, list[str]] = {}
    for name, licence in packages.items():
        by_licence.setdefault(spdx_of(licence), []).append(name.replace("@", " "))
    names = sorted(by_licence, key=lambda licence: (-len(by_licence[licence]), re.sub(r"\W", "", licence).lower()))
    return [
        f"\n**{licence}**\n\n" + "\n".join(wrap(", ".join(by_licence[licence]), _WIDTH, break_on_hyphens=False)) + "\n"
        for licence in names
    ]


def page() -> str:
    """Return the page."""
    return render(json.loads(ANSWER.read_text("utf-8")))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
