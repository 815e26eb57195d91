"""Everything that knows Spark: the session and its Java, the engine that runs the checks there, and the data source `ledgermq`.

No check lives here: what is read in a task goes through the same functions as without Spark.
"""
