"""The transactions of a store that no broker holds, for tools that decide one by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from broker.hot.core import Core
from broker.services.clients import Clients
from broker.services.config import Config
from broker.services.groups import Groups
from broker.services.offsets import ConsumerOffsets
from broker.services.topics import Topics
from broker.services.transaction.transactions import Transactions
from pystore import Store

__all__ = ["open_transactions"]


@contextmanager
def open_transactions(store: AbstractContextManager[Store]) -> Iterator[Transactions]:
    """Opens the store; at the end what was decided is written out, with progress and metadata.

    Raises: what opening a store raises."""
    with store as writer:
        config = Config(writer.settings)
        core = Core(writer, cluster=config["brokerClusterName"], region=config["regionId"])
        try:
            offsets = ConsumerOffsets(writer, core)
            offsets.start()
            groups = Groups(config, writer.metadata, core)
            topics = Topics(config, writer.metadata, core)
            transactions = Transactions(writer, core, config, Clients(groups, core), topics)
            transactions.start_now()
            yield transactions
            transactions.stop_now()
            offsets.persist_now()
        finally:
            core.close()
