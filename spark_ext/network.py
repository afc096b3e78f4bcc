"""Brokers as tasks reach them: the client's options out of those of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_ext.errors import BadOption

if TYPE_CHECKING:
    from spark_ext.options import NetworkOptions

__all__ = ["GROUP", "client_options", "producer_options"]

#: The producer group of the sink, and the group in whose name ranges are pulled.
GROUP = "rocketmq-spark"

#: A server that stalls for a few seconds costs a task some time, not one of Spark's attempts.
TIMEOUT_S = 30.0


def client_options(network: NetworkOptions) -> dict[str, Any]:
    """Makes the keyword arguments of a producer or a consumer, where it runs: certificates are
    files of that host. Raises: BadOption."""
    from broker.client.options import client_context
    from pystore.errors import StoreError

    tls: Any = network.tls
    if network.tls_ca:
        try:
            tls = client_context(network.tls_ca)
        except (StoreError, OSError) as e:
            raise BadOption(f"option tlsCaFile: {e}") from None
    return {"credentials": network.credentials, "tls": tls, "request_timeout_s": TIMEOUT_S}


def producer_options(network: NetworkOptions) -> dict[str, Any]:
    """Makes client_options() of a producer. Raises: BadOption."""
    return {**client_options(network), "send_timeout_s": TIMEOUT_S}
