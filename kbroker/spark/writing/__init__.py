"""Rows into topics: at least once, or exactly once with transactions."""
