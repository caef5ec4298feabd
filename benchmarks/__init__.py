"""Latency and throughput, measured: workloads, load, reports, stored results."""
