"""`python -m kant` is `kant`."""

from kant.cli import main

main()
