"""Prints a software bill of materials: every locked package and its contents, as CycloneDX 1.6 in JSON.

    python -m highwater.deploy.sbom > highwater.cdx.json

Invariant: a function of the locks, the audit and `pyproject.toml` alone. So it has no time, no random serial number and
no download address; packages are named by purl, files of the local stack also by their SHA-256. The lock has several
files per Python package, one for each platform, so their hashes are only there.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from highwater.deploy.dependencies import ANSWER, ROOT, Pin, locked
from highwater.deploy.local.fetch import read_lock
from highwater.deploy.notices import spdx_of

# Ids of SPDX's list that can be used alone; any other text is a name or an expression.
_ID = re.compile(
    r"(0BSD|Apache-2\.0|BSD-[23]-Clause|CC0-1\.0|ISC|MIT|MIT-0|MIT-CMU|MPL-2\.0|OFL-1\.1|PSF-2\.0|PostgreSQL|Unlicense)"
)
_EXPRESSION = re.compile(r"[\w.+-]+( (AND|OR|WITH) [\w.+-]+)+")


def bill(pins: list[Pin], answer: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the bill for these packages; `version` is the product's own."""
    product = f"pkg:pypi/highwater@{version}"
    own = {"type": "application", "bom-ref": product, "name": "highwater", "version": version, "purl": product}
    components = [_component(pin, answer) for pin in pins]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "licenses": [_licence("Apache-2.0")]}},
        "components": components,
        "dependencies": [{"ref": product, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def _component(pin: Pin, answer: Mapping[str, Any]) -> dict[str, Any]:
    group, _, artifact = pin.name.rpartition(":")
    kind = "pypi" if pin.ecosystem == "PyPI" else "maven"
    purl = f"pkg:{kind}/{group}/{artifact}@{pin.version}" if group else f"pkg:{kind}/{artifact}@{pin.version}"
    found: dict[str, Any] = {
        "type": "library", "bom-ref": purl, **({"group": group} if group else {}), "name": artifact, "version": pin.version,
        "purl": purl, "licenses": [_licence(answer["packages"][str(pin)])],
    }  # fmt: skip
    if kind == "maven":
        found["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in _digests(pin)]
    if carried := answer["carried"].get(pin.name):
        found["components"] = [_carried(one) for one in carried]
    return found


def _digests(pin: Pin) -> Iterator[str]:
    prefix = f"{pin.name}:{pin.version}:"
    yield from (file.sha256 for file in read_lock() if file.coordinate.startswith(prefix))


def _carried(one: Mapping[str, str]) -> dict[str, Any]:
    version = {"version": one["version"]} if "version" in one else {}
    return {"type": one["type"], "name": one["name"], **version, "licenses": [_licence(one["licence"])]}


def _licence(text: str) -> dict[str, Any]:
    name = spdx_of(text)
    if _ID.fullmatch(name):
        return {"license": {"id": name}}
    return {"expression": name} if _EXPRESSION.fullmatch(name) else {"license": {"name": name}}


def main() -> None:
    """Print the bill of this checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    made = bill(locked(), json.loads(ANSWER.read_text("utf-8")), project["version"])
    sys.stdout.write(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
