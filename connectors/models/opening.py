"""Chooses the models: the configured service, or its built-in replacement.

The client library of a service is loaded only if one is configured: it takes half a second and 30 MB of every process
that loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highwater.connectors.models.calls import ChatPort, LocalAnswer, LocalChat
from highwater.connectors.models.embeddings import BuiltInEmbedder, Embedder, VersionedEmbedder
from highwater.connectors.models.local_model import MINILM, LocalEmbedder
from highwater.connectors.models.local_reranker import open_local_reranker
from highwater.connectors.models.reranker import Reranker, open_service
from highwater.schemas.errors import ConfigurationError
from highwater.streams.models.context_windows import ContextWindows, parse_context_windows
from highwater.streams.settings import Settings
from highwater.streams.telemetry import get_log

if TYPE_CHECKING:
    from highwater.connectors.models.embedding_service import RemoteEmbedder

_log = get_log("models")


def context_windows(settings: Settings) -> ContextWindows:
    """Return the configured sizes of models; the endpoint that is opened with them adds what it learns.

    Raises:
        ConfigurationError: the setting is invalid.
    """
    return ContextWindows(parse_context_windows(settings.llm_context_tokens))


def open_chat_port(settings: Settings, answer: LocalAnswer, windows: ContextWindows | None = None) -> ChatPort:
    """Open the configured service, or without one the built-in model, which answers by `answer`.

    Raises:
        ConfigurationError: the address or key is invalid.
    """
    if settings.llm_url is None:
        return LocalChat(answer)
    from highwater.connectors.models.chat_service import ChatEndpoint, RemoteChat  # noqa: PLC0415 - see above

    windows = windows or context_windows(settings)
    seconds_max = settings.llm_timeout_seconds
    return RemoteChat(ChatEndpoint(settings.llm_url, settings.llm_key, seconds_max=seconds_max, windows=windows))


def chosen_embedder(settings: Settings) -> str:
    """Return which embedder is used: `builtin`, `local` or `service`.

    Raises:
        ConfigurationError: the requested one is not available.
    """
    missing = MINILM.why_missing(settings.model_dir)
    if settings.embedder is None:
        return "service" if settings.embeddings_url else "local" if missing is None else "builtin"
    if settings.embedder == "service" and not settings.embeddings_url:
        raise ConfigurationError("HIGHWATER_EMBEDDER=service needs EMBEDDINGS_BASE_URL")
    # A model whose files are missing is refused by name with the first text, as a damaged one: everything else works.
    if settings.embedder == "local" and not MINILM.is_runnable():
        raise ConfigurationError(f"HIGHWATER_EMBEDDER=local: {missing}; run `make install`, or set it to builtin")
    return settings.embedder


def open_remote_embedder(settings: Settings) -> RemoteEmbedder | None:
    """Open the configured embedding service, if it is used."""
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
    """Open the local model, if it is used; it is loaded with the first text."""
    if chosen_embedder(settings) != "local":
        return None
    return LocalEmbedder(settings.model_dir, threads=settings.embed_threads, in_background=in_background)


def model_basis_id(settings: Settings) -> str | None:
    """Return the embedding model version of the configured service or the local model; None: the built-in embedder."""
    found = open_remote_embedder(settings) or open_local_embedder(settings)
    return None if found is None else found.basis_id


def open_embedder(settings: Settings, *, in_background: bool = False) -> VersionedEmbedder:
    """Open the embedder for everything except feeds: a service, the local model or the built-in embedder.
    `in_background`: nobody waits.

    Raises:
        ConfigurationError: the requested one is not available.
    """
    found = open_remote_embedder(settings) or open_local_embedder(settings, in_background=in_background)
    embedder = found or BuiltInEmbedder()
    _log.info("embedder", embedder=chosen_embedder(settings), basis_id=embedder.basis_id)
    return embedder


def open_embedders(settings: Settings, *, in_background: bool = False) -> list[VersionedEmbedder]:
    """Open the same, followed by the built-in embedder, which older namespaces use: it needs nothing and is free."""
    embedder = open_embedder(settings, in_background=in_background)
    return [embedder] if isinstance(embedder, BuiltInEmbedder) else [embedder, BuiltInEmbedder()]


def open_question_embedders(settings: Settings) -> list[Embedder]:
    """Return the same for questions, each followed by its former versions, whose vectors older namespaces keep for a while."""
    return [version for one in open_embedders(settings) for version in (one, *one.former())]


def open_reranker(settings: Settings) -> Reranker | None:
    """Open the reranker of hybrid searches: a service, the local model, or none.

    Raises:
        ConfigurationError: the requested one is not available, or the address is invalid.
    """
    if settings.reranker == "service" and settings.rerank_url is None:
        raise ConfigurationError("HIGHWATER_RERANKER=service needs HIGHWATER_RERANK_BASE_URL")
    return open_local_reranker() if settings.reranker == "local" else open_service(settings)
