"""awa as a service of systemd: what it is told, how settings are reloaded, and the units themselves."""
