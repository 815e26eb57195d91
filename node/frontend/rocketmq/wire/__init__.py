"""Messages of the RocketMQ contract as values: validation, statuses, receipt handles, bodies, and what each method needs. Pure.
"""
