"""Generated tables, pages and images of the documents."""
