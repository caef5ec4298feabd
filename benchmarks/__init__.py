"""Measurement of latency and throughput: workloads, load generation, reports, stored results."""
