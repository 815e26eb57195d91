"""Messages of the RocketMQ contract as values: validation, statuses, receipt handles, bodies, and the rights a request needs.

No module here waits, routes or knows a broker group. The text of every refusal that clients see is in `validation.py` and `statuses.py`. A
new field of the contract is read and checked here. `rocketmq` and `native` import this package.
"""
