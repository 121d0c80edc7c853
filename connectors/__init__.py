"""Everything that touches the outside: Kafka, stores, models; sinks, workers and materializers as thin shells."""
