"""The `ledgermq sim` command: cases, shortened cases, and a page of what happened."""
