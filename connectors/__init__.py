"""Everything with I/O to the outside: Kafka, stores, models; sinks, workers and materializers as thin shells."""
