"""What must hold for the stores after faults."""
