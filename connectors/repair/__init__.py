"""Repairs partitions whose log lost its tail."""
