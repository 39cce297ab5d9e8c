"""Jobs, options, outcomes and schedules as values: no I/O."""
