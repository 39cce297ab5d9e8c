"""A worker: fetch → execute → complete, with a heartbeat beside it."""
