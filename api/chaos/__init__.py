"""Faults made on purpose, on a stack of their own."""
