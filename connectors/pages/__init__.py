"""The engine of versioned pages: made, kept in copies under leases, refreshed, served."""
