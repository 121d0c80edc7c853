"""What the pages of the dashboard stand on: what all routes share, and the two things of slices that they show."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.api.core.services import Services
from highwater.connectors.pages.reads import Documents
from highwater.streams.feeds.policy import Policy


@dataclass(frozen=True)
class DashboardServices:
    """What the dashboard is given when the application has started."""

    core: Services
    policy: Policy
    documents: Documents
