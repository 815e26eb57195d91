"""Everything that depends on Spark: the session and its Java, the engine that runs the checks
there, and the data source `ledgermq`.

No check lives here: tasks call the same functions that are used without Spark.
"""
