"""The parity check between an engine and its checkpoint."""
