"""A whole verification: tables and read models, decisions, effects, in one report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from connectors.kafka.handler import Surroundings
from connectors.verify.decisions import verify_decisions
from connectors.verify.effects import EFFECTS, verify_effects
from connectors.verify.judging import DECISIONS, NOT_JUDGED
from connectors.verify.models import MODELS, NOT_COMPARED, verify_models
from connectors.verify.report import Checked, Report
from connectors.verify.rows import ROWS
from connectors.verify.tables import verify_tables
from streams.settings import Settings

PARTS = ("tables", "models", "decisions", "effects")


async def verify(
    around: Surroundings,
    settings: Settings,
    *,
    parts: tuple[str, ...] = PARTS,
    say: Callable[[str], None] = lambda _part: None,
) -> Report:
    """Verify the parts that are named; `say` hears each as it begins.

    Raises:
        ConfigurationError: an address is missing, or a database may not be made.
        UnavailableError: Kafka, the registry or PostgreSQL is away.
    """
    doing: Mapping[str, Callable[[], Awaitable[list[Checked]]]] = {
        "tables": lambda: verify_tables(around.client, around.admin, around.registry, around.codec, settings),
        "models": lambda: verify_models(around, settings),
        "decisions": lambda: verify_decisions(around, settings),
        "effects": lambda: verify_effects(around, settings),
    }
    report = Report(excluded=excluded())
    for part in PARTS:
        if part in parts:
            say(part)
            report.checked += await doing[part]()
    return report


def excluded() -> dict[str, Mapping[str, str]]:
    """Everything that is left out by name, with why: the one catalogue of what is no function of the log."""
    found: dict[str, Mapping[str, str]] = {f"table {name}": rows.excluded for name, rows in ROWS.items()}
    found |= {f"read model {model.name}": model.excluded for model in MODELS}
    found["read models"] = NOT_COMPARED
    found |= {f"decision {one.topic}": one.excluded for one in DECISIONS}
    found["decisions"] = NOT_JUDGED
    found |= {f"effect {one.name}": one.excluded for one in EFFECTS}
    return {name: fields for name, fields in found.items() if fields}
