"""Metrics, logs, traces and recent latencies."""
