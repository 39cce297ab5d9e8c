"""Claim jobs as slots become free."""
