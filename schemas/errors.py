"""The root of every error that Highwater raises deliberately.

The class of an error says what happens next; the docstring is its default message and ends with the operator's action.
"""

from __future__ import annotations


class HighwaterError(Exception):
    """Something failed. Read the message."""

    retriable: bool = False
    retry_after_ms: int | None = None

    def __init__(self, message: str | None = None, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        if retry_after_ms is not None:
            self.retry_after_ms = retry_after_ms


class ConfigurationError(HighwaterError):
    """A setting is unknown or unreadable. Correct the environment or the .env file and start again."""


class CatalogueMismatchError(HighwaterError):
    """A topic differs from the catalogue. Correct what the message names; delete no topic, its events are nowhere else."""


class UnavailableError(HighwaterError):
    """A service cannot be reached. It is retried; see `highwater doctor`."""

    retriable = True
    retry_after_ms = 1000
    # Whether everything else works meanwhile: the process is then degraded in /readyz, but still ready.
    is_ready_without = False


class ModelUnavailableError(UnavailableError):
    """A model service does not answer. Work that needs it waits and is retried; check its URL and key."""

    is_ready_without = True


class AccessRefusedError(UnavailableError):
    """A service refuses the credentials, or its certificate is not trusted. Correct the setting that the message names."""


class FencedError(HighwaterError):
    """Another consumer moved this position: the batch is void and the partition is handed over. Nothing to do."""


class TopicRecreatedError(HighwaterError):
    """A topic was deleted and recreated, so stored positions are invalid. Run `highwater reset GROUP --to earliest --execute`."""


class TailLostError(HighwaterError):
    """Kafka lost records that this process has read. Run `highwater repair-log`, which shows what can be repaired."""


class RowsLostError(HighwaterError):
    """A changelog has lost its beginning, and the table has lost these rows. Stop the workers, run `highwater recover-tables`."""

    def __init__(self, table: str, partition: int, log_start: int) -> None:
        super().__init__(
            f"the changelog of the table {table} lost the first {log_start:,} records of partition {partition}, so rows are"
            " missing; nothing is decided without them. Stop the workers and run `highwater recover-tables`"
        )


class InvalidEventError(HighwaterError):
    """An event breaks a rule of its schema or topic. It is dead-lettered, or refused with 422 at the API.

    `reason` is a short name that a program can rely on; `field` is the field at fault, where there is one.
    """

    def __init__(self, reason: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field


class UnknownSchemaError(HighwaterError):
    """The bytes name a schema id that the registry does not have. The event is dead-lettered."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"schema id {schema_id} is not in the registry")
        self.schema_id = schema_id


class UnknownSchemaGuidError(HighwaterError):
    """A header names a schema by a GUID that the registry does not have. The value is shown as bytes."""


def leaves(error: BaseException) -> list[BaseException]:
    """Return the single errors in a group, however deep; any other error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves(inner)]
