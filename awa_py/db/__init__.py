"""Connections to PostgreSQL, notifications and migrations."""
