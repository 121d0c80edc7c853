"""Fault injection on a separate stack."""
