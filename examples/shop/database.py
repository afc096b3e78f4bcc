"""The services' databases: a file of SQLite, or PostgreSQL by a name as postgresql://user@host/shop
(the extra `postgres`). The statements of both services are understood by either.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

__all__ = ["make_tables", "transaction"]


def _connect(database: str) -> Any:
    if not database.startswith("postgresql://"):
        return sqlite3.connect(database, timeout=10)
    import psycopg

    class Connection(psycopg.Connection):
        """Parameters are written as in SQLite."""

        def execute(self, query: str, *rest: Any, **options: Any) -> Any:
            return super().execute(query.replace("?", "%s"), *rest, **options)

    return Connection.connect(database, connect_timeout=10)


@contextlib.contextmanager
def transaction(database: str) -> Iterator[Any]:
    """A connection whose work is committed at the end, and rolled back by an exception."""
    with contextlib.closing(_connect(database)) as connection, connection:
        yield connection


def make_tables(database: str, statements: str) -> None:
    """statements: each ends with a semicolon."""
    with transaction(database) as connection:
        for statement in statements.split(";"):
            if statement.strip():
                connection.execute(statement)
