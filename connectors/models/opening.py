"""Which model is asked: the configured service, or what stands in for it where none is.

The client of a service is loaded only where one is configured: it takes half a second and 30 MB of every process that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highwater.connectors.models.calls import ChatPort, LocalAnswer, LocalChat
from highwater.connectors.models.embeddings import BuiltInEmbedder, Embedder
from highwater.streams.settings import Settings

if TYPE_CHECKING:
    from highwater.connectors.models.embedding_service import RemoteEmbedder


def open_chat_port(settings: Settings, answer: LocalAnswer) -> ChatPort:
    """The configured service, or the built-in model where none is, which answers by `answer`.

    Raises:
        ConfigurationError: nothing can be asked at such an address, or with such a key.
    """
    if settings.llm_url is None:
        return LocalChat(answer)
    from highwater.connectors.models.chat_service import ChatEndpoint, RemoteChat  # noqa: PLC0415 - see above

    return RemoteChat(ChatEndpoint(settings.llm_url, settings.llm_key, seconds_max=settings.llm_timeout_seconds))


def open_remote_embedder(settings: Settings) -> RemoteEmbedder | None:
    """The configured service of embeddings, if there is one."""
    if not settings.embeddings_url:
        return None
    from highwater.connectors.models.embedding_service import RemoteEmbedder  # noqa: PLC0415 - see above

    return RemoteEmbedder(
        settings.embeddings_url,
        settings.embeddings_key,
        model=settings.embeddings_model,
        dimensions=settings.embedding_dimensions,
    )


def open_embedder(settings: Settings) -> Embedder:
    """What makes vectors outside feeds: the configured service, else the built-in embedder."""
    return open_remote_embedder(settings) or BuiltInEmbedder()
