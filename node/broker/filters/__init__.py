"""Filters of consumers: what a subscription selects, and SQL92 expressions. Pure functions over properties and tags.
"""
