"""Checks of golden cases, one file a kind."""
