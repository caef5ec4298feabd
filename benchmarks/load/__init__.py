"""Load generators, levels and service-level objectives."""
