"""The rows and limits of a parity check."""
