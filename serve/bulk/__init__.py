"""Bulk scoring of files: work items, the ledger of finished items, and the scorer."""
