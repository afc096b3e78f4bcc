"""Takes what was ordered from the stock: once for each order, however often its message comes.

python product_service.py DATABASE   until Ctrl-C
"""

import contextlib
import json
import sys
import threading
from collections.abc import Sequence
from typing import Self

from database import make_tables, transaction

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
        make_tables(database, TABLES)

    def apply(self, message: ReceivedMessage) -> None:
        """An exception brings the message again; a repeat is done at once."""
        order = json.loads(message.body)
        with transaction(self._database) as connection:
            applied = connection.execute(
                "INSERT INTO message_apply VALUES (?, ?) ON CONFLICT DO NOTHING",
                (GROUP, order["order"]),
            )
            if applied.rowcount == 0:
                self.repeats += 1
                return
            connection.execute(
                "UPDATE stock SET amount = amount - ? WHERE product = ?",
                (order["quantity"], order["product"]),
            )

    def stock(self, product: str) -> int:
        with transaction(self._database) as connection:
            (amount,) = connection.execute(
                "SELECT amount FROM stock WHERE product = ?", (product,)
            ).fetchone()
        return int(amount)

    def fill(self, product: str, amount: int) -> None:
        with transaction(self._database) as connection:
            connection.execute(
                "INSERT INTO stock VALUES (?, ?)"
                " ON CONFLICT (product) DO UPDATE SET amount = excluded.amount",
                (product, amount),
            )

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
