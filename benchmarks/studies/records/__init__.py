"""Result types of the studies, and of all stored results."""
