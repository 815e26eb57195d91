"""Makes the data source `ledgermq` known to every PySpark session: Spark imports the modules
`pyspark_*` and takes `DefaultSource` of each.

The source itself is `ledgermq.audit.spark.source`. An error here would keep Spark from every Python
data source of the environment, and the client is installed without what the source needs. So a
missing package is reported when the source is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

try:
    from ledgermq.audit.spark.source import LedgermqSource as DefaultSource
except ImportError as error:
    MISSING = str(error)

    class DefaultSource(DataSource):  # type: ignore[misc, no-redef]
        """Refuses every use, and names the remedy."""

        @classmethod
        def name(cls) -> str:
            return "ledgermq"

        def __init__(self, options: Any) -> None:
            raise ImportError(
                f"the data source ledgermq cannot be used here: {MISSING}; pip install"
                " 'ledgermq[spark]'"
            )


__all__ = ["DefaultSource"]
