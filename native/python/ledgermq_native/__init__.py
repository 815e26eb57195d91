"""Compiled kernels and gRPC transport of LedgerMQ; the product runs without this package."""

from ledgermq_native._native import __version__, audit_scan, entries, front

__all__ = ["__version__", "audit_scan", "entries", "front"]
