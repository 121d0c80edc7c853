"""The one caller of the clock, what a role imports, and that nothing of one machine is in the tree; layers: `make check`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("api", "connectors", "deploy", "schemas", "streams")
FAUST_MAY = {"streams/app.py", "streams/folding_consumer.py", "streams/table_manager.py"}
# Waiting and the start of a supervised process are measured by the machine's own clock; deploy knows no product time.
CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
# The calls of these functions in a module; only modules with them are parsed.
CLOCK = re.compile(r"\b(?:time|time_ns|now|utcnow|today)\s*\(")


def tracked() -> list[Path]:
    """Files that git has or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def modules() -> list[Path]:
    """The product's modules."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def texts() -> list[tuple[Path, str]]:
    """The product's modules with what they hold."""
    return [(path, path.read_text(encoding="utf-8")) for path in modules()]


def test_only_the_app_and_the_agents_import_faust():
    """Faust stays behind its doors, so that a decision needs no broker to be tested."""
    importing = {
        str(path.relative_to(ROOT))
        for path in modules()
        if re.search(
            r"^\s*(?:import faust|from faust|import mode\b|from mode\b)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert {name for name in importing if name in FAUST_MAY or name.endswith("/agents.py")} == importing


def test_one_module_reads_avro():
    """Only `schemas/readable.py` has the Avro library decode; elsewhere the library writes, and only our own schemas are
    parsed. The producer of `history-check` parses those that the registry of the stack gives, as any foreign one does.
    """
    wanted = {
        "schemas/readable.py": {"parse_schema", "schemaless_reader", "to_parsing_canonical_form"},
        "schemas/codec.py": {"schemaless_writer"},
        "api/history_check/wire.py": {"parse_schema", "schemaless_writer"},
        "connectors/replay/avro_file.py": {"parse_schema", "Writer"},
    }
    found: dict[str, set[str]] = {}
    for path, text in texts():
        for node in ast.walk(ast.parse(text)) if "fastavro" in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fastavro":
                found.setdefault(str(path.relative_to(ROOT)), set()).update(alias.name for alias in node.names)
            elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "fastavro" for alias in node.names):
                found.setdefault(str(path.relative_to(ROOT)), set()).add("fastavro")
    assert wanted == found


def test_only_limited_processes_compute_what_a_stranger_wrote():
    """CEL and DuckDB are loaded by the processes that limit themselves (`connectors/children.py`), at no other place."""
    wanted = {
        "cel": {"connectors/replay/cel_alone.py"},
        "highwater.connectors.replay.cel_alone": {"connectors/replay/condition.py"},
        "duckdb": {f"connectors/sql/{name}.py" for name in ("faults", "sandbox", "views")},
        "highwater.connectors.sql.sandbox": {"connectors/sql/query_process.py"},
        "highwater.connectors.sql.views": {"connectors/sql/sandbox.py"},
    }
    imports = {name: re.compile(rf"^\s*(?:import|from) {re.escape(name)}\b", re.MULTILINE) for name in wanted}
    found = {
        name: {str(path.relative_to(ROOT)) for path, text in texts() if pattern.search(text)}
        for name, pattern in imports.items()
    }
    assert wanted == found


def test_only_the_clock_reads_the_time():
    """No module but `streams/clock.py` asks what time it is; the supervisor of the local stack knows no product time."""
    calls = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path, text in texts()
        if path != ROOT / "streams" / "clock.py" and ROOT / "deploy" not in path.parents and CLOCK.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("datetime.") in CLOCKS
    ]
    assert calls == []


def test_the_core_has_no_chance_in_it():
    """No randomness in schemas and streams beside `clock.fresh_id`; a UUID of version 5 is computed from a name."""
    modules = r"import (?:random|secrets|uuid)\b|from (?:random|secrets) import"
    drawing = re.compile(rf"^\s*(?:{modules}|from uuid import .*\buuid[14]\b)", re.MULTILINE)
    found = [
        str(path.relative_to(ROOT))
        for package in ("schemas", "streams")
        for path in (ROOT / package).rglob("*.py")
        if drawing.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["streams/clock.py"]


@pytest.mark.parametrize(
    ("role", "without"),
    [
        ("highwater.api.app", {"hdbscan", "sklearn", "pandas", "openai", "nicegui", "pyarrow", "scipy", "httpx"}),
        (
            "highwater.connectors.run",
            {"hdbscan", "sklearn", "pandas", "openai", "pyarrow", "scipy", "httpx2", "aiokafka", "authlib"}
            | {"cryptography.hazmat", "joserfc", "pptx", "reportlab"},
        ),
        ("highwater.connectors.kafka.registry", {"authlib", "cryptography", "httpx2", "confluent_kafka"}),
        ("highwater.streams.app", {"scipy", "asyncpg", "redis", "confluent_kafka", "openai"}),
        ("highwater.connectors.replay.where", {"pandas", "cel"}),
        ("highwater.connectors.replay.condition", {"pyarrow", "numpy", "confluent_kafka", "prompt_toolkit", "typer"}),
        ("highwater.connectors.sql.engine", {"pandas", "duckdb"}),
        ("highwater.connectors.sql.query_process", {"pandas"}),
        ("highwater.connectors.replay.search_process", {"pandas", "duckdb", "asyncpg"}),
        ("highwater.connectors.replay.parts", {"numpy", "pyarrow", "confluent_kafka", "httpx2", "authlib"}),
    ],
)
def test_a_role_starts_without_what_it_may_never_need(role: str, without: set[str]):
    """Each of these takes up to a second and 100 MB of every process that loads it."""
    told = f"import sys, {role}; print(*{without!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_nothing_of_one_machine_is_in_the_tree():
    """No package index, proxy or path of a developer's machine in any file that git takes."""
    # Put together, so that this file does not hold them.
    home, work = "/" + "root/", "/" + "work/"
    bad = re.compile(rf"(?:(?<![\w.]){home}|(?<![\w.]){work}(?:main|shared)|--(?:extra-)?index-" + r"url\s+http)")
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in bad.finditer(text)]
    assert found == []


def test_the_lock_names_no_address():
    """The locked dependencies carry hashes and no download address, so any index that has the files will do."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert lock.count("--hash=sha256:") > 100
    assert re.findall(r"https?://\S+", lock) == []
