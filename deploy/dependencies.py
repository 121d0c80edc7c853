"""The audit of the locked dependencies: their licences and known vulnerabilities, with an assessment of each.

    python -m highwater.deploy.dependencies                              # offline: does the answer cover exactly the locks?
    python -m highwater.deploy.dependencies --advisories FOLDER_OR_ZIP …   # and each finding of a newer copy of the database?
    python -m highwater.deploy.dependencies --advisories … --refresh --checked DATE   # answer again, from that copy

Invariants. `dependencies.json` names exactly the packages of requirements.lock and jars.lock, with their versions. Each
has a licence of the list below, or the answer says why it may be used; each vulnerability in a locked version has an
answer. Nothing is fetched: advisories are a copy of a database in the OSV format (PyPA's repository, or OSV's archive
of an ecosystem), licences are those that the installed packages declare. The age of the copy is the first thing that is
printed, and `deploy/release.py` refuses one that is too old.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from highwater.deploy.local.fetch import read_lock

ROOT = Path(__file__).resolve().parents[1]
ANSWER = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "dependencies.md"
LOCK = ROOT / "requirements.lock"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
# Words that make up the names of permissive licences, in any spelling.
_PERMISSIVE = re.compile(
    r"\b(0BSD|Apache|BSD|CC0|ISC|ISCL|MIT|MIT-0|MIT-CMU|OFL-1\.1|PSF|Public Domain|Python Software Foundation|"
    r"Repoze Public|Unlicense|Zlib)\b"
)
_RECIPROCAL = re.compile(r"\b(AGPL|GPL|LGPL|MPL|EPL|GNU|Mozilla|Eclipse)", re.IGNORECASE)
_NAME_CHARACTERS_MAX = 60
_RECORD_SUFFIXES = (".json", ".yaml", ".yml")
_EXIT_WRONG = 1


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """One locked package."""

    ecosystem: str
    name: str
    version: str

    def __str__(self) -> str:
        """Return it as the answer names it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A vulnerability of a locked version, by the advisory's id; `why` names the matching part of the record."""

    pin: Pin
    advisory: str
    why: str


def locked(lock: Path = LOCK) -> list[Pin]:
    """Return every package of both locks."""
    pins = {Pin("PyPI", canonicalize_name(name), version) for name, version in _PIN.findall(lock.read_text("utf-8"))}
    for file in read_lock():
        group, artifact, version, *_ = file.coordinate.split(":")
        pins.add(Pin("Maven", f"{group}:{artifact}", version))
    return sorted(pins)


# -- checking, offline ------------------------------------------------------------------------------------------------------


def faults(pins: list[Pin], answer: Mapping[str, Any], page: str) -> list[str]:
    """Return what is wrong with an answer for these pins; nothing if it is valid."""
    told = [f"{one} is locked, and the answer does not name it" for one in pins if str(one) not in answer["packages"]]
    known = {str(one) for one in pins}
    told += [f"{name} is answered, and not locked" for name in answer["packages"] if name not in known]
    exceptions = answer["licence_exceptions"]
    for name, licence in answer["packages"].items():
        package = name.rpartition("@")[0]
        if not is_permissive(licence) and package not in exceptions:
            told.append(f"{name} is under {licence!r}, and nothing says why it may be used")
    packages = {one.name for one in pins}
    told += [f"{name} has an exception, and is not locked" for name in exceptions if name not in packages]
    for found in answer["vulnerabilities"]:
        if found["package"] not in known:
            told.append(f"{found['id']} is answered for {found['package']}, which is not locked")
        if not found.get("answer"):
            told.append(f"{found['id']} in {found['package']} has no answer")
    if page != render(answer):
        told.append(f"{PAGE.name} differs from the answer; write it with --write-page")
    return told


def is_permissive(licence: str) -> bool:
    """Return whether a licence, as a package declares it, only requires its notice to be kept."""
    return bool(_PERMISSIVE.search(licence)) and not _RECIPROCAL.search(licence)


# -- renewing the answer -----------------------------------------------------------------------------------------------------


def declared_licence(name: str) -> str | None:
    """Return the licence that an installed package declares; None: it is not installed, or declares none that can be read."""
    try:
        found = metadata(name)
    except PackageNotFoundError:
        return None
    for expression in found.get_all("License-Expression") or ():
        return str(expression)
    classified = [
        one.rsplit("::", 1)[-1].strip() for one in found.get_all("Classifier") or () if one.startswith("License")
    ]
    named = [one for one in classified if one not in ("OSI Approved", "DFSG approved")]
    # Some packages have a whole licence text there.
    free = " ".join(found.get_all("License") or ()).strip()
    return " / ".join(named) or (free if 0 < len(free) <= _NAME_CHARACTERS_MAX else None)


def records(source: Path) -> Iterator[dict[str, Any]]:
    """Yield the OSV records in a folder or a zip archive, as JSON or YAML, without withdrawn ones."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for suffix, text in _texts(source):
        record = json.loads(text) if suffix == ".json" else yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
        if isinstance(record, dict) and "affected" in record and "withdrawn" not in record:
            yield record


def _texts(source: Path) -> Iterator[tuple[str, str]]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.suffix in _RECORD_SUFFIXES:
                yield path.suffix, path.read_text("utf-8")
        return
    with zipfile.ZipFile(source) as archive:
        for name in sorted(archive.namelist()):
            if Path(name).suffix in _RECORD_SUFFIXES:
                yield Path(name).suffix, archive.read(name).decode("utf-8")


@dataclass(frozen=True, slots=True)
class Advisories:
    """A copy of a database of advisories; `state` is the day of its newest change (YYYY-MM-DD)."""

    state: str
    records: tuple[dict[str, Any], ...]


def read_advisories(sources: Sequence[Path]) -> Advisories:
    """Read copies of databases, each a folder or a zip archive of OSV records.

    Raises:
        ValueError: no record in them has a date.
    """
    known = tuple(record for source in sources for record in records(source))
    state = max((str(record["modified"])[:10] for record in known if "modified" in record), default=None)
    if state is None:
        raise ValueError(f"no advisory with a date in {', '.join(map(str, sources))}")
    return Advisories(state, known)


def unanswered(found: Iterable[Finding], answer: Mapping[str, Any]) -> list[str]:
    """Return the findings that the answer does not name."""
    answered = {(one["package"], one["id"]) for one in answer["vulnerabilities"]}
    return [
        f"{one.pin}: {one.advisory} needs an answer" for one in found if (str(one.pin), one.advisory) not in answered
    ]


def findings(pins: list[Pin], advisories: Iterable[dict[str, Any]]) -> list[Finding]:
    """Return which advisories name a locked version."""
    by_name: dict[tuple[str, str], list[Pin]] = {}
    for pin in pins:
        by_name.setdefault((pin.ecosystem, pin.name), []).append(pin)
    found = set()
    for record in advisories:
        for affected in record["affected"]:
            package = affected.get("package", {})
            ecosystem, name = package.get("ecosystem", ""), package.get("name", "")
            name = canonicalize_name(name) if ecosystem == "PyPI" else name
            for pin in by_name.get((ecosystem, name), ()):
                why = _affects(affected, pin.version)
                if why is not None:
                    found.add(Finding(pin, str(record["id"]), why))
    return sorted(found)


def _affects(affected: Mapping[str, Any], version: str) -> str | None:
    """Return why a version is affected; None: it is not. A version that cannot be compared counts, so that a person checks it."""
    if version in (str(one) for one in affected.get("versions") or ()):
        return "named"
    for span in affected.get("ranges") or ():
        if span.get("type") != "ECOSYSTEM":
            continue
        try:
            if _is_within(span["events"], Version(version)):
                return "in range"
        except InvalidVersion:
            return "cannot be compared"
    return None


def _is_within(events: list[Mapping[str, str]], version: Version) -> bool:
    """Return whether a version is in a range of events (OSV schema, affected[].ranges[].events)."""
    is_inside = False
    for event in sorted(events, key=lambda one: _place(str(next(iter(one.values()))))):
        kind, text = next(iter(event.items()))
        place = _place(str(text))
        if kind == "introduced" and version >= place:
            is_inside = True
        elif (kind == "fixed" and version >= place) or (kind == "last_affected" and version > place):
            is_inside = False
    return is_inside


def _place(text: str) -> Version:
    return Version("0.dev0" if text == "0" else text)


def refreshed(
    pins: list[Pin], old: Mapping[str, Any], found: list[Finding], checked: str, state: str, count: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the renewed answer, and what only a person can add: a licence that no package declares, an answer to a finding."""
    told, packages = [], {}
    earlier = {name.rpartition("@")[0]: licence for name, licence in old["packages"].items()}
    for pin in pins:
        declared = declared_licence(pin.name) if pin.ecosystem == "PyPI" else None
        licence = old["licences_by_hand"].get(pin.name) or declared or earlier.get(pin.name)
        if licence is None:
            told.append(f"{pin}: its licence is unknown; add it to licences_by_hand")
            licence = ""
        packages[str(pin)] = licence
    answers = {(one["package"], one["id"]): one for one in old["vulnerabilities"]}
    wanted = {(str(one.pin), one.advisory): one for one in found}
    kept = [one for key, one in answers.items() if key in wanted or one["package"] in packages]
    fresh = [key for key in wanted if key not in answers]
    told += unanswered(found, old)
    vulnerabilities = [*kept, *({"package": package, "id": advisory, "answer": ""} for package, advisory in fresh)]
    answer = {
        **old,
        "checked": checked,
        "advisories": {"state": state, "records": count},
        "packages": packages,
        "vulnerabilities": sorted(vulnerabilities, key=lambda one: (one["package"], one["id"])),
    }
    return answer, told


# -- the page -----------------------------------------------------------------------------------------------------------------


def render(answer: Mapping[str, Any]) -> str:
    """Return the answer as a page."""
    permissive = sum(is_permissive(licence) for licence in answer["packages"].values())
    count, known = len(answer["packages"]), answer["advisories"]
    lines = [
        "# Dependencies: licences and known vulnerabilities",
        "",
        "Written by `python -m highwater.deploy.dependencies --write-page` from `deploy/dependencies.json`; a test compares both",
        "with `requirements.lock` and `deploy/local/jars.lock`, offline.",
        "",
        f"Checked on {answer['checked']}: {count} locked packages, {permissive} of them under permissive licences,",
        f"against {known['records']} advisories of the PyPA advisory database as of {known['state']}.",
        f"{answer['advisories_by_hand']}",
        "",
        "## Vulnerabilities",
        "",
        "| package | advisory | answer |",
        "|---|---|---|",
        *(f"| {one['package']} | {one['id']} | {one['answer']} |" for one in answer["vulnerabilities"]),
        "",
        "## Licences that ask for more than a notice",
        "",
        "| package | licence | why it may be used |",
        "|---|---|---|",
    ]
    by_package = {name.rpartition("@")[0]: licence for name, licence in answer["packages"].items()}
    lines += [
        f"| {name} | {by_package.get(name)} | {why} |" for name, why in sorted(answer["licence_exceptions"].items())
    ]
    lines += ["", "## All packages", "", "| package | licence |", "|---|---|"]
    lines += [f"| {name} | {licence} |" for name, licence in answer["packages"].items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Check the answer, or renew it; return the exit status."""
    parser = argparse.ArgumentParser(description="Checks that the audit of the dependencies covers exactly the locks.")
    parser.add_argument("--advisories", type=Path, nargs="+", default=[], help="folders or zip files of OSV records")
    parser.add_argument("--refresh", action="store_true", help="updates the answers; keeps what people wrote")
    parser.add_argument("--checked", help="date of this check, with --refresh")
    parser.add_argument("--write-page", action="store_true", help=f"writes {PAGE.name} from the answer")
    asked = parser.parse_args(arguments)
    if asked.refresh and not (asked.advisories and asked.checked):
        parser.error("--refresh needs --advisories and --checked")
    pins, answer = locked(), json.loads(ANSWER.read_text("utf-8"))
    told: list[str] = []
    if asked.advisories:
        known = read_advisories(asked.advisories)
        sys.stdout.write(f"{len(known.records)} advisories as of {known.state}\n")
        found = findings(pins, known.records)
        told = unanswered(found, answer)
        if asked.refresh:
            answer, told = refreshed(pins, answer, found, asked.checked, known.state, len(known.records))
            ANSWER.write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        sys.stdout.write(f"{answer['advisories']['records']} advisories as of {answer['advisories']['state']}\n")
    if asked.write_page or asked.refresh:
        PAGE.write_text(render(answer), encoding="utf-8")
    told += faults(pins, answer, PAGE.read_text("utf-8") if PAGE.is_file() else "")
    sys.stdout.writelines(f"{line}\n" for line in dict.fromkeys(told))
    return _EXIT_WRONG if told else 0


if __name__ == "__main__":
    sys.exit(main())
