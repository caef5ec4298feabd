"""Comparison of stored results and of two running servers."""
