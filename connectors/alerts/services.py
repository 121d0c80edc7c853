"""Sends alerts by any service that apprise supports (Slack, Telegram, ntfy, JSON by POST, ...): one channel per
address.

Invariant: sending ends within its time limit, delivered or with a `ChannelError`; no error and no log line shows an
address, since that holds the token of its service. Each address is a separate channel, so one that fails does not delay
another.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Sequence
from typing import Any

from highwater.connectors.alerts.channels import ChannelError, Message
from highwater.schemas.errors import ConfigurationError

# As for a mail: some services need several requests.
SERVICE_SECONDS_MAX = 30.0
_SETTING = "HIGHWATER_ALERT_URLS"
# They log addresses, and texts of services that quote what they were sent; the channel reports failures instead.
_LOUD = ("apprise", "urllib3.connectionpool")


class ServiceChannel:
    """One address."""

    is_paced = True

    def __init__(self, name: str, service: Any) -> None:
        self.name = name
        self._service = service

    async def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ChannelError: the service did not accept it within the limit. The cause is unknown, so another attempt is
                worthwhile.
        """
        given = {"title": message.subject, "body": message.text, "notify_type": "failure"}
        try:
            async with asyncio.timeout(SERVICE_SECONDS_MAX):
                is_sent = await asyncio.to_thread(self._service.notify, **given)
        except TimeoutError:
            raise ChannelError(f"no answer within {SERVICE_SECONDS_MAX:g} s", is_final=False) from None
        except Exception as error:  # noqa: BLE001 - of any of a hundred services; its text may hold the address
            raise ChannelError(f"cannot be sent: {type(error).__name__}", is_final=False) from None
        if not is_sent:
            raise ChannelError("the service cannot be reached or did not take it", is_final=False)

    async def close(self) -> None:
        """Do nothing."""


def open_services(urls: Sequence[str]) -> list[ServiceChannel]:
    """Return a channel for each address, named by its scheme and its index in the setting.

    Raises:
        ConfigurationError: apprise is not installed, or does not support an address.
    """
    try:
        import apprise  # noqa: PLC0415 - an extra, and only who has addresses needs it
    except ImportError:
        raise ConfigurationError(f"{_SETTING} needs apprise: pip install 'highwater[alerts]'") from None
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    asset = apprise.AppriseAsset(
        app_id="Highwater", app_desc="Highwater", storage_mode=apprise.PersistentStoreMode.MEMORY
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its services load modules that Python is about to unload
        services = [apprise.Apprise.instantiate(url, asset=asset) for url in urls]
    channels = []
    for number, (url, service) in enumerate(zip(urls, services, strict=True), start=1):
        if service is None:
            raise ConfigurationError(
                f"{_SETTING}: address {number} of {len(urls)} is not one that apprise knows; see its documentation"
            )
        channels.append(ServiceChannel(f"{url.partition('://')[0].lower()}-{number}", service))
    return channels
