"""`python -m ledgermq` is the `ledgermq` command."""

from ledgermq.cli import main

main()
