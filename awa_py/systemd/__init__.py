"""awa as a systemd service: notifications, reload of settings, and unit files."""
