"""The engine of versioned pages: built, cached under leases, refreshed, served."""
