"""Result tables and HTML reports of `pipe bench`."""
