"""Random problems against the truth in double precision: ``python -m tessera.verify attention``."""
