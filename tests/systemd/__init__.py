"""Tests with a real systemd. They are opt-in, since they need root and systemd-nspawn (docs/systemd.md)."""
