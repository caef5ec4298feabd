"""Rows and tolerances of a parity check."""
