"""The panel of a user's clusters: a failed load is retried, and the last request is shown last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from highwater.api.dashboard import clusters_panel
from highwater.api.dashboard.clusters_panel import ClustersPanel
from highwater.schemas.errors import UnavailableError


class Page:
    """The part of the page that the panel uses."""

    services: Any
    told: str | None = ""

    def __init__(self) -> None:
        self.services = self

    @property
    def database(self) -> Any:
        """It is there."""
        return self

    def require(self) -> None:
        """The pool."""

    def asked(self, _: str) -> str:
        """Nothing is in the address."""
        return ""

    def tell(self, problem: str | None) -> None:
        """Note what stands above the page."""
        self.told = problem


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch) -> ClustersPanel:
    """A panel that is in no browser, of a user with two versions."""

    async def versions(*_: object) -> list[dict[str, Any]]:
        return [{"cluster_version": number, "updated_at": number, "caused_by": ""} for number in (2, 1)]

    async def no_sizes(*_: object) -> list[dict[str, Any]]:
        return []

    monkeypatch.setattr(clusters_panel.dashboard_reads, "versions", versions)
    monkeypatch.setattr(clusters_panel.dashboard_reads, "cluster_sizes", no_sizes)
    monkeypatch.setattr(ClustersPanel, "_tell", lambda *_: None)
    monkeypatch.setattr(ClustersPanel, "_note_address", lambda _: None)
    return ClustersPanel(Page(), "ada")  # type: ignore[arg-type]


async def test_what_failed_is_tried_again(panel: ClustersPanel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next refresh, though no version was made since; after that nothing is read until one is."""
    reads: list[int] = []

    async def read(_: ClustersPanel) -> None:
        reads.append(1)
        if len(reads) == 1:
            raise UnavailableError("PostgreSQL is away")

    monkeypatch.setattr(ClustersPanel, "_read_and_show", read)
    with pytest.raises(UnavailableError):
        await panel.refresh(2)
    await panel.refresh(2)
    await panel.refresh(2)
    assert len(reads) == 2


async def test_what_was_asked_for_last_is_shown_last(panel: ClustersPanel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the read of the version before takes longer."""
    shown: list[int | None] = []

    async def read(one: ClustersPanel) -> None:
        version = one._version
        for _ in range(5 if version == 1 else 1):
            await asyncio.sleep(0)
        shown.append(version)

    monkeypatch.setattr(ClustersPanel, "_read_and_show", read)
    await panel.refresh(2)
    await asyncio.gather(panel._moved(0), panel._to_now())
    assert shown[-1] is None
    assert len(shown) == 3


async def test_what_cannot_be_read_is_said_above_the_page(
    panel: ClustersPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do; the next move that works takes it away."""

    async def fails(_: ClustersPanel) -> None:
        raise UnavailableError("PostgreSQL is away")

    async def works(_: ClustersPanel) -> None:
        """Nothing to show."""

    monkeypatch.setattr(ClustersPanel, "_read_and_show", works)
    await panel.refresh(2)
    monkeypatch.setattr(ClustersPanel, "_read_and_show", fails)
    await panel._moved(0)
    assert panel._view.told == "PostgreSQL is away. Try again."  # type: ignore[attr-defined]
    monkeypatch.setattr(ClustersPanel, "_read_and_show", works)
    await panel._to_now()
    assert panel._view.told is None  # type: ignore[attr-defined]
