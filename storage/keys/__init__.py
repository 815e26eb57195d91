"""The key index, and finding messages by key or physical offset: hints into the log, which every
reader verifies there."""
