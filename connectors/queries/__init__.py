"""Queries: runs of the pipeline stored, worked on stage by stage, and told."""
