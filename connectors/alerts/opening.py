"""Which channels are configured."""

from __future__ import annotations

from collections.abc import Callable

from highwater.connectors.alerts.channels import Channel, LogChannel, MailChannel, WebhookChannel
from highwater.connectors.alerts.services import open_services
from highwater.schemas.errors import ConfigurationError
from highwater.streams.clock import Clock
from highwater.streams.settings import Settings


def open_channels(settings: Settings, clock: Clock) -> list[Channel]:
    """Return every configured channel; the log if none is.

    Raises:
        ConfigurationError: a setting is wrong, or one that belongs to it is missing.
    """
    channels: list[Channel] = []
    mail = (settings.alert_smtp_url, settings.alert_email_from, settings.alert_email_to)
    if all(mail):
        make: Callable[..., Channel] = MailChannel
        channels.append(make(*mail, clock))
    elif any(mail):
        raise ConfigurationError(
            "HIGHWATER_ALERT_SMTP_URL, HIGHWATER_ALERT_EMAIL_FROM and HIGHWATER_ALERT_EMAIL_TO belong together: set all or none"
        )
    if settings.alert_webhook_url is not None:
        channels.append(WebhookChannel(settings.alert_webhook_url))
    if settings.alert_urls:
        channels += open_services(settings.alert_urls)
    return channels or [LogChannel()]
