"""A real systemd: opt-in, since it needs root and systemd-nspawn (docs/systemd.md)."""
