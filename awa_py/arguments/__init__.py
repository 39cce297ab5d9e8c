"""Handler arguments and results: checked against annotations, converted to JSON and back."""
