"""Others that do the same work, measured beside pipework in one run."""
