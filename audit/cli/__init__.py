"""The command `ledgermq audit`: arguments, and the verdict as text, JSON, data set and page.
Nothing is judged here."""
