"""`python -m awa_cli`: the same as `awa`."""

from .main import main

main()
