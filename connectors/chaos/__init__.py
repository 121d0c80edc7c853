"""What must be true of the stores after faults."""
