"""`python -m practicum`."""

from practicum.cli import main

main()
