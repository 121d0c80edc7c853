"""Clients of Kafka and the schema registry over librdkafka: admin, producer, consumer framework."""
