"""Places orders: the row, its line of the log and the message exist all, or none of them.

python order_service.py DATABASE PRODUCT QUANTITY...   places one order for each quantity
"""

import json
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, Self

from database import make_tables, transaction

from broker import LocalState, Message, ReceivedMessage, TransactionProducer

GROUP = "order-service"
TOPIC = "shop-orders"
#: Longer than the longest local transaction may take.
GRACE_S = 60.0
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, product TEXT, quantity INTEGER);
CREATE TABLE IF NOT EXISTS transaction_log (order_id TEXT PRIMARY KEY, at DOUBLE PRECISION);
"""


class OrderService:
    def __init__(self, database: str, namesrv: str | None = None, grace_s: float = GRACE_S) -> None:
        self._database = database
        self._grace_s = grace_s
        self.producer = TransactionProducer(GROUP, namesrv, check=self.check)
        make_tables(database, TABLES)

    def place(self, product: str, quantity: int) -> str:
        """The order's id. An exception of the database rolls everything back."""
        order = uuid.uuid4().hex
        body = json.dumps({"order": order, "product": product, "quantity": quantity}).encode()
        message = Message(TOPIC, body, keys=order, properties={"OrderId": order})
        with self.producer.transaction(message), transaction(self._database) as connection:
            self.store(connection, order, product, quantity)
        return order

    def store(self, connection: Any, order: str, product: str, quantity: int) -> None:
        connection.execute("INSERT INTO orders VALUES (?, ?, ?)", (order, product, quantity))
        connection.execute("INSERT INTO transaction_log VALUES (?, ?)", (order, time.time()))

    def check(self, message: ReceivedMessage) -> LocalState:
        """From the durable log: the process that placed the order may be gone."""
        with transaction(self._database) as connection:
            found = connection.execute(
                "SELECT 1 FROM transaction_log WHERE order_id = ?", (message.keys[0],)
            ).fetchone()
        if found:
            return LocalState.COMMIT
        young = time.time() * 1000 - message.born_timestamp < self._grace_s * 1000
        return LocalState.UNKNOWN if young else LocalState.ROLLBACK

    def __enter__(self) -> Self:
        self.producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.close()


def main(words: Sequence[str]) -> None:
    database, product, *quantities = words
    with OrderService(database) as service:
        for quantity in quantities:
            print(service.place(product, int(quantity)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
