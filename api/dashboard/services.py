"""The services of the dashboard's pages: the common ones, and those of the two slices that they show."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.api.core.services import Services
from highwater.connectors.pages.reads import Documents
from highwater.streams.feeds.policy import Policy


@dataclass(frozen=True)
class DashboardServices:
    """The services of the dashboard once the application has started."""

    core: Services
    policy: Policy
    documents: Documents
