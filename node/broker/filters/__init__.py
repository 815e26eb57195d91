"""Which messages a consumer wants: tags and SQL92 expressions.

A filter looks at the properties of one message and knows neither queues nor leases. A new kind of
filter is a class with the shape of `Filter` in `node/broker/ports.py`. Calls, decisions and the
request checks of the frontend import this package.
"""
