"""Topics of a running cluster as Spark tables and streams, and writing to them: options, source and
sink."""
