"""Models and their versions: repository, registry, leases, reload."""
