"""`highwater backtest prompts`: recorded queries answered again by another prompt or model, beside the recorded
answers.

Invariant: nothing is stored and nothing is published; the service is called, and paid, for each replayed query.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import FAILED, Command, CommandFailedError, json_option
from highwater.api.command.connection import database, stack_settings
from highwater.api.command.terminal import print_json, print_table, progress, say, warn
from highwater.api.command.times import TimeOption, at_ms
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from highwater.connectors.queries.backtest import History, Variant
    from highwater.streams.queries.backtest import Comparison, Side, Totals
    from highwater.streams.settings import Settings

# As many as are read in one sitting, two calls each: some 1.50 USD at 5 USD for a million tokens and 3,000 tokens per
# call.
LIMIT_DEFAULT = 50
# A query may fill pages; the first lines show which one it is.
_QUERY_CHARACTERS_MAX = 200
# All comparisons are held in memory, with draft and payload some 100 KB each.
LIMIT_MAX = 1_000


class PromptOption(click.ParamType):
    """`ROLE=FILE`: a role whose prompt can be compared, and the text of the file."""

    name = "prompt"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the role and the prompt."""
        from highwater.schemas.errors import InvalidEventError
        from highwater.streams.queries.backtest import ROLES
        from highwater.streams.queries.validation import check_prompt

        if isinstance(value, tuple):
            return value
        role, _, name = value.partition("=")
        if role not in ROLES:
            self.fail(f"{role!r} is neither {' nor '.join(ROLES)}: other roles are not replayed", param, ctx)
        try:
            text = Path(name).read_text(encoding="utf-8")
            check_prompt(name, text)
        except (OSError, UnicodeDecodeError, InvalidEventError) as error:
            self.fail(f"{name!r} holds no prompt: {error}", param, ctx)
        return role, text


@click.command(cls=Command)
@click.option("--since", type=TimeOption(), default="-7d", show_default=True, help="A time, or an age such as -30d.")
@click.option("--prompt", "given", type=PromptOption(), multiple=True, metavar="ROLE=FILE",
              help="Another prompt for Mentor or Assembler, at most one for each.")  # fmt: skip
@click.option("--model", metavar="NAME", help="Another model for the answer [default: the recorded one].")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=LIMIT_DEFAULT, show_default=True,
              help="Number of queries to replay, newest first.")  # fmt: skip
@json_option
def prompts(since: int, given: tuple[tuple[str, str], ...], model: str | None, limit: int, as_json: bool) -> None:
    """Answer recorded queries again with another prompt or model, and show what changes.

    Each query is answered from its recorded input; nothing is retrieved again or stored.
    """
    from highwater.connectors.queries.backtest import Variant

    context = click.get_current_context()
    if not given and not model:
        raise click.UsageError("give --prompt or --model to compare with", context)
    if len(dict(given)) != len(given):
        raise click.UsageError("--prompt names a role twice", context)
    settings = stack_settings("database")
    if settings.llm_url is None:
        raise CommandFailedError("LLM_BASE_URL is not set: the built-in model reads no prompts and has no other model")
    history, comparisons = asyncio.run(_replay(settings, Variant(dict(given), model), since, limit))
    document = _document(history, comparisons)
    if as_json:
        print_json(document)
    else:
        _print(document)
    if failed := document["totals"]["failed"]:
        warn(f"{failed} of {len(comparisons)} queries could not be repeated")
        context.exit(FAILED)


async def _replay(settings: Settings, variant: Variant, since: int, limit: int) -> tuple[History, list[Comparison]]:
    from highwater.connectors.models.opening import open_chat_port
    from highwater.connectors.queries.backtest import Replay, read_history
    from highwater.connectors.queries.stages import answered_locally
    from highwater.streams.clock import ProductClock, fresh_number
    from highwater.streams.models.costs import parse_prices
    from highwater.streams.queries.states import Stage

    async with database(settings) as pool:
        history = await read_history(pool, at_ms(since, ProductClock(settings.clock_file)()), limit)
    if not history.queries:
        raise CommandFailedError("no query of that time can be replayed; see --since")
    models = {Stage.ASSEMBLER: settings.llm_model, Stage.RESPONDER: settings.llm_strong_model}
    port = open_chat_port(settings, answered_locally)
    try:
        replay = Replay(port, parse_prices(settings.llm_prices), variant, models, fresh_number())
        with progress("queries", len(history.queries)) as bar:
            return history, await replay.compare_all(history.queries, bar.update)
    finally:
        await port.close()


def _document(history: History, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    from highwater.schemas.envelope import iso_from_ms
    from highwater.streams.queries.backtest import totals

    return {
        "recorded": history.recorded,
        "totals": _totals(totals(comparisons)),
        "queries": [
            {
                "request_id": one.request_id,
                "asked_at": iso_from_ms(one.asked_ms),
                "query": one.query,
                "recorded": _side(one.recorded),
                "replayed": None if one.replayed is None else _side(one.replayed),
                "error": one.error,
                "changed": one.is_changed,
                "sources_lost": list(one.lost),
                "sources_added": list(one.added),
                "lines": list(one.lines),
            }
            for one in comparisons
        ],
    }


def _totals(found: Totals) -> dict[str, Any]:
    names = ("recorded", "replayed")
    return {
        "replayed": found.replayed,
        "failed": found.failed,
        "changed": found.changed,
        "sources_lost": found.lost,
        "sources_added": found.added,
        "uncited": dict(zip(names, found.uncited, strict=True)),
        "tokens": dict(zip(names, found.tokens, strict=True)),
        "cost_usd": dict(zip(names, map(_usd, found.cost_usd), strict=True)),
    }


def _side(side: Side) -> dict[str, Any]:
    return {"answer": side.answer, "model": side.model, "tokens": side.tokens, "cost_usd": _usd(side.cost_usd)}


def _usd(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


def _print(document: dict[str, Any]) -> None:
    for one in document["queries"]:
        if one["changed"] or one["error"]:
            _print_query(one)
    found = document["totals"]
    rows = [
        (
            side,
            f"{found['uncited'][side]:,}",
            f"{found['tokens'][side]:,}",
            "-" if found["cost_usd"][side] is None else f"{found['cost_usd'][side]:,.4f}",
        )
        for side in ("recorded", "replayed")
    ]
    columns = ["answers", "without a source", "tokens", "USD"]
    print_table(columns, rows, right=columns[1:])
    say(
        f"\n{found['changed']:,} of {found['replayed']:,} answers change; {counted(found['sources_lost'], 'citation')} lost,"
        f" {found['sources_added']:,} added; {len(document['queries']):,} of"
        f" {counted(document['recorded'], 'recorded query was', 'recorded queries were')} answered again"
    )


def _print_query(one: dict[str, Any]) -> None:
    from highwater.streams.letters import cut_to

    query = cut_to(" ".join(one["query"].split()), _QUERY_CHARACTERS_MAX)
    say(f"{one['asked_at']} {one['request_id']}\n  {printable(query)}")
    if one["error"]:
        say(f"  failed: {printable(one['error'])}\n")
        return
    for line in one["lines"]:
        say(f"  {printable(line)}")
    for name, said in (("sources_lost", "sources lost"), ("sources_added", "sources added")):
        if one[name]:
            say(f"  {said}: {printable(', '.join(one[name]))}")
    before, after = one["recorded"], one["replayed"]
    models = printable(" to ".join(dict.fromkeys((before["model"], after["model"]))))
    say(f"  tokens {before['tokens']:,} to {after['tokens']:,} ({models})\n")
