"""Durable jobs: what a handler asks its Context to do once, or to wait for."""
