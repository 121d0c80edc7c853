"""Kafka and the schema registry, as clients of librdkafka: admin, producer, consumer framework."""
