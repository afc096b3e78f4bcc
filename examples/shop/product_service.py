"""Takes what was ordered from the stock: once for each order, however often its message comes.

python product_service.py DATABASE   until Ctrl-C
"""

import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Sequence
from typing import Self

from broker import Consumer, ReceivedMessage

GROUP = "product-service"
TOPIC = "shop-orders"
TABLES = """
CREATE TABLE IF NOT EXISTS stock (product TEXT PRIMARY KEY, amount INTEGER CHECK (amount >= 0));
CREATE TABLE IF NOT EXISTS message_apply (
    consumer_group TEXT, business_key TEXT, PRIMARY KEY (consumer_group, business_key)
);
"""


class ProductService:
    def __init__(self, database: str, namesrv: str | None = None, max_retries: int = 16) -> None:
        self._database = database
        self.consumer = Consumer(
            GROUP, TOPIC, namesrv=namesrv, start="first", handler=self.apply,
            concurrency=1, max_retries=max_retries,
        )  # fmt: skip
        self.repeats = 0
        with self._connect() as connection:
            connection.executescript(TABLES)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database, timeout=10)

    def apply(self, message: ReceivedMessage) -> None:
        """An exception brings the message again; a repeat is done at once."""
        order = json.loads(message.body)
        with contextlib.closing(self._connect()) as connection, connection:
            try:
                connection.execute(
                    "INSERT INTO message_apply VALUES (?, ?)", (GROUP, order["order"])
                )
            except sqlite3.IntegrityError:
                self.repeats += 1
                return
            connection.execute(
                "UPDATE stock SET amount = amount - ? WHERE product = ?",
                (order["quantity"], order["product"]),
            )

    def stock(self, product: str) -> int:
        with contextlib.closing(self._connect()) as connection:
            (amount,) = connection.execute(
                "SELECT amount FROM stock WHERE product = ?", (product,)
            ).fetchone()
        return int(amount)

    def fill(self, product: str, amount: int) -> None:
        with contextlib.closing(self._connect()) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO stock VALUES (?, ?)", (product, amount))

    def __enter__(self) -> Self:
        self.consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()


def main(words: Sequence[str]) -> None:
    (database,) = words
    with ProductService(database), contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
