"""Benchmarks with the shipped defaults: `python -m bench [NAME…]`. Only this package imports
itself."""
