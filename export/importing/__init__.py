"""Import checkpoints that other programs trained, and prove that the import answers the same."""
