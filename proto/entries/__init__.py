"""An entry of the log: its layout, its encoding and sealing, its properties, and columns of many
entries (docs/format.md §2 to §4)."""
