"""A message that is delivered only if the database commits."""

import sqlite3

from broker import Consumer, LocalState, Message, ReceivedMessage, TransactionProducer

database = sqlite3.connect("file:orders?mode=memory&cache=shared", uri=True)
database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, transaction_id TEXT UNIQUE)")


def check(message: ReceivedMessage) -> LocalState:
    """The broker asks when it did not hear how a transaction ended: the database knows."""
    with sqlite3.connect("file:orders?mode=memory&cache=shared", uri=True) as own:
        found = own.execute(
            "SELECT 1 FROM orders WHERE transaction_id = ?", (message.transaction_id,)
        ).fetchone()
    return LocalState.COMMIT if found else LocalState.UNKNOWN


with TransactionProducer("shop", check=check) as producer:
    for order in ("17", "18", "17"):  # the last one breaks the primary key
        try:
            with producer.transaction(Message("orders-tx", order.encode())) as tx, database:
                database.execute("INSERT INTO orders VALUES (?, ?)", (order, tx.transaction_id))
        except sqlite3.IntegrityError as twice:
            print("rolled back:", twice)
with Consumer("billing", "orders-tx", start="first") as consumer:
    for _, message in zip(range(2), consumer, strict=False):
        print("delivered: order", message.body.decode())
database.close()
