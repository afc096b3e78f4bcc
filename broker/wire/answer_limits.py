"""How long the answer to a request of ours may be.

A broker, a slave, a proxy and a client ask servers that others name, in the background, again and
again. What they ask for is short, and is read on their loop; 12 MB of digits as the settings of a
master held it for a quarter of a second. Lists and messages, which are asked for on purpose and
grow with what a broker has, are as long as a frame may be."""

from __future__ import annotations

from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command

__all__ = ["SHORT_ANSWER_MAX", "check_answer"]

#: Bytes: a topic's route to four thousand brokers, the ids of twenty thousand clients.
SHORT_ANSWER_MAX = 1 << 20

_SHORT = frozenset((
    # of name servers
    Code.GET_KV_CONFIG, Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.GET_ROUTEINFO_BY_TOPIC,
    Code.GET_BROKER_CLUSTER_INFO, Code.QUERY_DATA_VERSION, Code.GET_BROKER_MEMBER_GROUP,
    Code.BROKER_HEARTBEAT,
    # of brokers
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
    Code.END_TRANSACTION, Code.RECALL_MESSAGE, Code.QUERY_CONSUMER_OFFSET,
    Code.UPDATE_CONSUMER_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME, Code.HEART_BEAT, Code.UNREGISTER_CLIENT,
    Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.CHECK_CLIENT_CONFIG, Code.ACK_MESSAGE,
    Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME, Code.NOTIFICATION,
    Code.GET_TOPIC_CONFIG, Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.GET_CONSUMER_LIST_BY_GROUP,
    # of masters and controllers
    Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.EXCHANGE_BROKER_HA_INFO,
    Code.GET_BROKER_HA_STATUS, Code.AUTH_GET_USER, Code.CONTROLLER_ALTER_SYNC_STATE_SET,
    Code.CONTROLLER_ELECT_MASTER, Code.CONTROLLER_REGISTER_BROKER,
    Code.CONTROLLER_GET_REPLICA_INFO, Code.CONTROLLER_GET_NEXT_BROKER_ID,
    Code.CONTROLLER_APPLY_BROKER_ID,
))  # fmt: skip


def check_answer(code: int, answer: Command) -> None:
    """Checks that the answer to a request of this code is not too long to be read. Raises:
    ConnectionError."""
    size = len(answer.body)
    if size > SHORT_ANSWER_MAX and code in _SHORT:
        raise ConnectionError(
            f"the answer to request {code} has {size} bytes; no more than {SHORT_ANSWER_MAX} are"
            " read: check that the address is that of a RocketMQ server"
        )
