"""Several worker processes under one supervisor: `awa worker --processes N`."""
