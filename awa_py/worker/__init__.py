"""Workers: claim jobs, run their handlers, and write the outcomes."""
