"""Copies of node directories: taken at a consistent point, verified, and turned into node
directories again, also from an object store."""
