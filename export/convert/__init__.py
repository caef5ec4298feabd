"""Converters between checkpoint and engine formats."""
