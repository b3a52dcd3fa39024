"""Adapters for the frameworks that users already run."""
