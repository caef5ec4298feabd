"""Rows of a parity check."""
