"""The data source that Spark sees under the name ``rocketmq``.

Spark imports this module in each of its Python processes, so it imports neither pystore nor
pyarrow.
"""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from spark_ext import options as given
from spark_ext import schema as columns
from spark_ext.errors import SourceError
from spark_ext.tasks import check_packages

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RocketmqSource"]


def _check_pystore() -> None:
    """Checks where the package comes from: a job's own pystore.py comes before the package. Raises:
    SourceError that names it."""
    found = importlib.util.find_spec("pystore")
    if found is not None and found.submodule_search_locations is None:
        raise SourceError(
            f"Python finds {found.origin} before the package 'pystore': rename that file, or take"
            " its folder off sys.path (PYTHONPATH)"
        )


class RocketmqSource(DataSource):
    """``spark.read.format("rocketmq").load("store")``; options and columns: docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        _check_pystore()
        check_packages()

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        # A stream asks for its schema through the same call; what belongs to one of the two alone
        # is checked by the reader. A path that is not a store is reported here, at load().
        names, properties, timers = given.parse_columns(dict(self.options))
        return columns.ddl(names, properties, timers=timers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark import __version__

        from spark_ext.batch import BatchReader
        from spark_ext.pushdown import PushingReader, wanted
        from spark_ext.timers import TimerReader

        options = given.parse_read(dict(self.options), streaming=False)
        if options.timers == "pending":
            return TimerReader(options, columns.layout(schema, timers=True))
        kind = PushingReader if wanted(options.pushdown, __version__) else BatchReader
        return kind(options, columns.layout(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_ext.stream import StreamReader

        options = given.parse_read(dict(self.options), streaming=True)
        return StreamReader(options, columns.layout(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_ext.sender import BatchSender
        from spark_ext.sink import BatchWriter
        from spark_ext.transactional import BatchHalves

        options = given.parse_write(dict(self.options))
        over_network = BatchHalves if options.transactional else BatchSender
        kind = over_network if options.network else BatchWriter
        return kind(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_ext.sender import StreamSender
        from spark_ext.sink import StreamWriter
        from spark_ext.transactional import StreamHalves

        options = given.parse_write(dict(self.options), streaming=True)
        over_network = StreamHalves if options.transactional else StreamSender
        kind = over_network if options.network else StreamWriter
        return kind(options, schema, overwrite)
