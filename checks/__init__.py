"""Checks of our own, for what ruff, mypy and import-linter do not look at: `python -m checks`."""
