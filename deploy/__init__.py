"""Configurations people deploy as they are, and ``render``, which fits them to a local stack."""
