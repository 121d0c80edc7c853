"""Which model is asked: the configured service, or what stands in for it where none is.

The client of a service is loaded only where one is configured: it takes half a second and 30 MB of every process that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highwater.connectors.models.calls import ChatPort, LocalAnswer, LocalChat
from highwater.connectors.models.embeddings import BuiltInEmbedder, Embedder
from highwater.connectors.models.local_model import MINILM, LocalEmbedder
from highwater.connectors.models.local_reranker import open_local_reranker
from highwater.connectors.models.reranker import Reranker, open_service
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

if TYPE_CHECKING:
    from highwater.connectors.models.embedding_service import RemoteEmbedder

_log = get_log("models")


def open_chat_port(settings: Settings, answer: LocalAnswer) -> ChatPort:
    """The configured service, or the built-in model where none is, which answers by `answer`.

    Raises:
        ConfigurationError: nothing can be asked at such an address, or with such a key.
    """
    if settings.llm_url is None:
        return LocalChat(answer)
    from highwater.connectors.models.chat_service import ChatEndpoint, RemoteChat  # noqa: PLC0415 - see above

    return RemoteChat(ChatEndpoint(settings.llm_url, settings.llm_key, seconds_max=settings.llm_timeout_seconds))


def chosen_embedder(settings: Settings) -> str:
    """What makes vectors: `builtin`, `local` or `service`.

    Raises:
        ConfigurationError: the one that is asked for is not there.
    """
    missing = MINILM.why_missing(settings.model_dir)
    if settings.embedder is None:
        return "service" if settings.embeddings_url else "local" if missing is None else "builtin"
    if settings.embedder == "service" and not settings.embeddings_url:
        raise ConfigurationError("HIGHWATER_EMBEDDER=service needs EMBEDDINGS_BASE_URL")
    if settings.embedder == "local" and missing is not None:
        raise ConfigurationError(f"HIGHWATER_EMBEDDER=local: {missing}; run `make install`, or set it to builtin")
    return settings.embedder


def open_remote_embedder(settings: Settings) -> RemoteEmbedder | None:
    """The configured service of embeddings, if it makes the vectors."""
    if chosen_embedder(settings) != "service" or settings.embeddings_url is None:
        return None
    from highwater.connectors.models.embedding_service import RemoteEmbedder  # noqa: PLC0415 - see above

    return RemoteEmbedder(
        settings.embeddings_url,
        settings.embeddings_key,
        model=settings.embeddings_model,
        dimensions=settings.embedding_dimensions,
    )


def open_local_embedder(settings: Settings, *, in_background: bool = False) -> LocalEmbedder | None:
    """The local model, if it makes the vectors; it is loaded with the first text."""
    if chosen_embedder(settings) != "local":
        return None
    return LocalEmbedder(settings.model_dir, threads=settings.embed_threads, in_background=in_background)


def open_embedder(settings: Settings, *, in_background: bool = False) -> Embedder:
    """What makes vectors outside feeds: a service, the local model or the built-in embedder. `in_background`: nobody waits.

    Raises:
        ConfigurationError: the one that is asked for is not there.
    """
    found = open_remote_embedder(settings) or open_local_embedder(settings, in_background=in_background)
    embedder = found or BuiltInEmbedder()
    _log.info("embedder", embedder=chosen_embedder(settings), basis_id=embedder.basis_id)
    return embedder


def open_embedders(settings: Settings, *, in_background: bool = False) -> list[Embedder]:
    """The same, and behind it the built-in embedder, whose vectors older namespaces have: it needs nothing and costs nothing."""
    embedder = open_embedder(settings, in_background=in_background)
    return [embedder] if isinstance(embedder, BuiltInEmbedder) else [embedder, BuiltInEmbedder()]


def open_question_embedders(settings: Settings) -> list[Embedder]:
    """The same for questions, and the local model as before leads, whose vectors older namespaces have for a while."""
    first, *others = open_embedders(settings)
    if not isinstance(first, LocalEmbedder):
        return [first, *others]
    return [first, LocalEmbedder(settings.model_dir, threads=settings.embed_threads, has_leads=False), *others]


def open_reranker(settings: Settings) -> Reranker | None:
    """What counts beside the scores of hybrid searches: a service, the local model, or nothing.

    Raises:
        ConfigurationError: the one that is asked for is not there, or nothing can be asked at such an address.
    """
    if settings.reranker == "service" and settings.rerank_url is None:
        raise ConfigurationError("HIGHWATER_RERANKER=service needs HIGHWATER_RERANK_BASE_URL")
    return open_local_reranker() if settings.reranker == "local" else open_service(settings)
