"""Topics and consumer groups: created, changed, described and deleted by an operator."""
