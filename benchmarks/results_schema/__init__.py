"""Result types of `pipe bench`."""
