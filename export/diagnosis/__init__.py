"""Diagnosis of engines that fail the parity check."""
