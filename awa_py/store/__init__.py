"""Every SQL statement that awa sends: one file in `sql/` and one function per statement.

The functions take a Session and know nothing about workers or leaders.
"""
