"""The workloads, written once for all Python contenders.

A contender runs with the interpreter of its own virtual environment, so nothing here may import awa, nor anything but
asyncpg and uvloop.
"""
