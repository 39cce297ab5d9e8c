"""One-line mistakes that the tests must notice: `make mutants` plants each in a copy of the tree and runs its tests."""
