"""Brokers as librdkafka simulates them itself, of which one can stop to answer without the others."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

_PRODUCER = 0
_ERROR_BYTES = 512


@dataclass
class SimulatedBrokers:
    """Some of them; their numbers are from 1 on."""

    library: ctypes.CDLL
    cluster: int
    addresses: str

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        """A topic without records."""
        assert self.library.rd_kafka_mock_topic_create(self.cluster, topic.encode(), partitions, replicas) == 0

    def silence(self, number: int) -> None:
        """A broker that takes connections and answers nothing for ten minutes."""
        self.library.rd_kafka_mock_broker_set_rtt(self.cluster, number, 600_000)


@contextmanager
def simulated_brokers(count: int) -> Iterator[SimulatedBrokers]:
    """This number of them, ended with the block."""
    library = _library()
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    handle = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), error, _ERROR_BYTES)
    assert handle, error.value
    cluster = library.rd_kafka_mock_cluster_new(handle, count)
    try:
        yield SimulatedBrokers(library, cluster, library.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(handle)


def _library() -> ctypes.CDLL:
    """The one of the client, with the types of what is used here."""
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, returned, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_broker_set_rtt", number, [pointer, ctypes.c_int32, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = returned, arguments
    return library
