"""Benchmarks with the shipped defaults: `python -m bench [NAME…]`. Nothing imports this package but itself."""
