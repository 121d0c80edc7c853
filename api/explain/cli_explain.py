"""`highwater explain`: shows the events behind what is served now, with their positions and the time between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import CommandFailedError, Group, json_option
from highwater.api.command.connection import database, kafka_client, own_settings, stack_settings
from highwater.api.command.terminal import print_json
from highwater.streams.printable import printable

if TYPE_CHECKING:
    from highwater.connectors.explain.explaining import Explainer
    from highwater.connectors.explain.explanations import Explanation

_CHANNELS_DEFAULT, _CHANNELS_MAX = 20, 1_000


@click.group(cls=Group)
def explain() -> None:
    """Show the events that made a feed or a page: insight, advance, dirty, novelty, request, rebuild, bump, served."""


@explain.command()
@click.argument("user")
@click.option(
    "--channels",
    "channels_max",
    type=click.IntRange(1, _CHANNELS_MAX),
    default=_CHANNELS_DEFAULT,
    show_default=True,
    help="Follow the N channels with the most new insights; the others are only counted.",
)
@click.option("--cluster", "cluster_id", metavar="ID", help="Explain this cluster of the feed instead.")
@json_option
def feed(user: str, channels_max: int, cluster_id: str | None, as_json: bool) -> None:
    """Explain the feed of USER, or one cluster of it: the rebuilds in which its insights entered it, and the insights."""
    if cluster_id is not None:
        from highwater.streams.clock import ProductClock

        now_ms = ProductClock(own_settings().clock_file)()
        _show(lambda explainer: explainer.cluster(user, cluster_id, now_ms), as_json=as_json)
        return
    _show(lambda explainer: explainer.feed(user, channels_max), as_json=as_json)


@explain.command()
@click.argument("key")
@json_option
def resource(key: str, as_json: bool) -> None:
    """Explain the resource of a KEY, such as league:table:2025-26, md:MATCH:live or clusters:USER."""
    _show(lambda explainer: explainer.resource(key), as_json=as_json)


def _show(ask: Callable[[Explainer], Awaitable[Explanation]], *, as_json: bool) -> None:
    from highwater.connectors.explain.explaining import UnknownResourceError

    try:
        document = asyncio.run(_explained(ask)).document(own_settings().trace_url)
    except UnknownResourceError as error:
        raise CommandFailedError(str(error)) from error
    if as_json:
        print_json(document)
    else:
        _print_tree(document)


async def _explained(ask: Callable[[Explainer], Awaitable[Explanation]]) -> Explanation:
    from highwater.connectors.explain.explaining import Explainer
    from highwater.connectors.kafka.registry import Registry

    settings = stack_settings("kafka", "schema_registry", "database")
    registry = Registry(settings.registry_access())
    codec = await registry.codec()
    async with database(settings) as pool:
        return await ask(Explainer(pool, codec, kafka_client(settings), registry.text_of))


def _print_tree(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def label(step: dict[str, Any]) -> Text:
        text = Text(f"{step['kind']}  ", style="bold")
        text.append(printable(step["about"]), style="not bold")
        places = [step["position"], step["at"], None if step["delay_ms"] is None else f"+{_seconds(step['delay_ms'])}"]
        text.append(printable("  ".join(["", *(place for place in places if place)])), style="dim not bold")
        if step["missing"]:
            text.append(printable(f"  ({step['missing']})"), style="yellow not bold")
        if step["trace_id"]:
            text.append(printable(f"  trace {step['trace_url'] or step['trace_id']}"), style="dim not bold")
        return text

    def grow(tree: Tree, step: dict[str, Any]) -> None:
        for cause in step["causes"]:
            grow(tree.add(label(cause)), cause)

    tree = Tree(label(document["tree"]))
    grow(tree, document["tree"])
    # Lines are not wrapped in a pipe; a terminal wraps them.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=10_000)
    console.print(tree)


def _seconds(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms / 1_000:,.1f} s"
