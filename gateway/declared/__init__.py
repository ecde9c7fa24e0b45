"""Tenants as one file: read, compared with the database, and brought about."""
