"""`ledgermq console`: pages to look at a cluster and to change it, served by a process of their
own.

The console keeps no data: it is a client of the asynchronous admin API (`client/api/admin.py`), and
makes every call as the user who signed in. It needs the extra `console` (aiohttp and Jinja2);
nothing outside of this package imports it.
"""
