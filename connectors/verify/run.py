"""A whole verification: tables and read models, decisions, effects, in one report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack

from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.verify.decisions import verify_decisions
from highwater.connectors.verify.effects import EFFECTS, NOT_LOOKED_FOR, verify_effects
from highwater.connectors.verify.judging import DECISIONS, NOT_JUDGED
from highwater.connectors.verify.models import MODELS, NOT_COMPARED, verify_models
from highwater.connectors.verify.report import Checked, Report
from highwater.connectors.verify.rows import ROWS
from highwater.connectors.verify.shadow import shadow_database
from highwater.connectors.verify.tables import verify_tables
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.streams.settings import Settings

PARTS = ("tables", "models", "decisions", "effects")


async def verify(
    context: ProcessContext,
    settings: Settings,
    *,
    parts: tuple[str, ...] = PARTS,
    say: Callable[[str], None] = lambda _part: None,
    time_limit: TimeLimit | None = None,
) -> Report:
    """Verify the named parts; `say` gets each as it begins, `time_limit` limits each.

    Raises:
        ConfigurationError: an address is missing, or a database may not be created.
        UnavailableError: a service is unavailable, another verification is in progress, or a part took too long.
    """
    time_limit = time_limit or TimeLimit()
    report = Report(excluded=excluded(parts))
    async with AsyncExitStack() as opened:
        doing: dict[str, Callable[[], Awaitable[list[Checked]]]] = {
            "tables": lambda: verify_tables(context, settings, time_limit),
            "decisions": lambda: verify_decisions(context, settings, time_limit),
            "effects": lambda: verify_effects(context, settings, time_limit),
        }
        if "models" in parts:
            # Before everything else, so that an obstacle is not found after an hour.
            shadow = await opened.enter_async_context(shadow_database(context, settings, time_limit))
            doing["models"] = lambda: verify_models(context, settings, shadow, time_limit)
        for part in PARTS:
            if part in parts:
                say(part)
                async with time_limit.part(part):
                    report.checked += await doing[part]()
    return report


def excluded(parts: Collection[str] = PARTS) -> dict[str, Mapping[str, str]]:
    """Return everything that is left out by name, with the reason: the catalogue of what is not a function of the log."""
    found: dict[str, Mapping[str, str]] = {}
    if "tables" in parts:
        found |= {f"table {name}": rows.excluded for name, rows in ROWS.items()}
    if "models" in parts:
        found |= {f"read model {model.name}": model.excluded for model in MODELS}
        found["read models"] = NOT_COMPARED
    if "decisions" in parts:
        found |= {f"decision {one.topic}": one.excluded for one in DECISIONS}
        found["decisions"] = NOT_JUDGED
    if "effects" in parts:
        found |= {f"effect {one.name}": one.excluded for one in EFFECTS}
        found["effects"] = NOT_LOOKED_FOR
    found |= {f"part {part}": {"all of it": "not asked for"} for part in PARTS if part not in parts}
    return {name: fields for name, fields in found.items() if fields}
