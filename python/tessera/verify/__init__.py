"""Checks random problems against double precision: ``python -m tessera.verify``."""
