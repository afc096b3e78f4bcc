"""One port that is everything to whoever asks it: a name server, a broker, a port for slaves, a
controller, etcd. It answers what is plausible, what is not, and what does not end, and names itself
wherever an address is asked for."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import struct
import threading
from typing import Any

from broker.wire import codec
from broker.wire.codes import RequestCode as Code
from broker.wire.command import RESPONSE, Command

__all__ = ["Hostile"]

MIB = 1 << 20
#: In the place of any part of an answer.
NODES: list[Any] = [
    None, True, -1, 0, 1 << 31, 1 << 63, 10**40, 1.5, "", "x", "\0\n\x1b[31m", "9" * 5000, [], {},
    [None], {"": None}, {"0": []}, [[]] * 100, "y" * 100_000,
]  # fmt: skip


class Hostile:
    """seed: of what it answers. calm: how many of a hundred answers are plausible."""

    def __init__(self, seed: int, calm: int = 50) -> None:
        self._random, self._calm = random.Random(seed), calm
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        #: How often each code was asked; 0: of other protocols.
        self.asked: dict[int, int] = {}
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Hostile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = self._sock.accept()[0]
                with self._lock:
                    self._open.add(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ValueError):
            sock.settimeout(30)
            data = b""
            while piece := sock.recv(1 << 16):
                data += piece
                data = self._frames(sock, data)
        with self._lock:
            self._open.discard(sock)

    def _frames(self, sock: socket.socket, data: bytes) -> bytes:
        """Answers the whole frames, and returns the rest."""
        while len(data) >= 8:
            size = struct.unpack(">I", data[:4])[0]
            if data.startswith(b"POST") or not 4 < size < 16 * MIB or data[:4] == bytes(4):
                self.asked[0] = self.asked.get(0, 0) + 1
                self._other(sock, data.startswith(b"POST"))
                return b""
            if len(data) < 4 + size:
                break
            command, data = codec.decode(data[: 4 + size]), data[4 + size :]
            self.asked[command.code] = self.asked.get(command.code, 0) + 1
            if not command.flag & RESPONSE:
                self._answer(sock, command)
        return data

    # ---- the remoting protocol ----

    def _answer(self, sock: socket.socket, command: Command) -> None:
        chance = self._random
        kind = chance.randrange(100)
        if kind < self._calm:
            ext, body = self._plausible(command.code)
            sock.sendall(self._reply(command, 0, ext, json.dumps(body).encode()))
        elif kind < self._calm + 25:
            ext, body = self._plausible(command.code)
            ext = {n: str(self._mutated(v))[:2000] for n, v in ext.items()}
            text = json.dumps(self._mutated(body))
            sock.sendall(self._reply(command, 0, ext, text.encode("utf-8", "replace")))
        elif kind < self._calm + 33:
            code = chance.choice((1, 2, 14, 16, 17, 20, 21, 105, 206, 999, 1 << 30, -1))
            sock.sendall(self._reply(command, code, {"x": "y"}, chance.randbytes(99)))
        elif kind < self._calm + 38:
            sock.sendall(self._reply(command, 0, {}, b"[" * chance.choice((9, 100_000))))
        elif kind < self._calm + 40:
            sock.sendall(self._reply(command, 0, {}, b"0" * (12 * MIB)))
        elif kind < self._calm + 42:
            sock.sendall(chance.randbytes(5000))
        elif kind < self._calm + 44:
            sock.sendall(struct.pack(">iI", 15 * MIB, 100) + bytes(3 * MIB))
        elif kind < self._calm + 46:
            sock.close()
        # else silence

    @staticmethod
    def _reply(command: Command, code: int, ext: dict[str, str], body: bytes) -> bytes:
        answer = command.reply(code, "hostile\n\x1b[31m", ext, body)
        return bytes(codec.encode(answer))

    def _mutated(self, value: Any) -> Any:
        """The same with another node somewhere."""
        chance = self._random
        if chance.random() < 0.3 or not isinstance(value, dict | list) or not value:
            return chance.choice(NODES)
        if isinstance(value, dict):
            key = chance.choice(list(value))
            return {**value, key: self._mutated(value[key])}
        at = chance.randrange(len(value))
        return [*value[:at], self._mutated(value[at]), *value[at + 1 :]]

    def _plausible(self, code: int) -> tuple[dict[str, str], Any]:
        me = self.address
        brokers = {"0": me, "1": me}
        row = {"brokerName": "b", "brokerAddrs": brokers, "cluster": "DefaultCluster"}
        queues = {
            "brokerName": "b", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4,
            "topicSysFlag": 0,
        }  # fmt: skip
        offsets = {"offsetTable": {"T@g": {"0": 9, "1": 1 << 40}}, "dataVersion": {"counter": 1}}
        ext = {
            "masterAddr": me, "haServerAddr": me, "controllerLeaderAddress": me, "epoch": "3",
            "masterBrokerId": "0", "masterAddress": me, "masterEpoch": "3", "nextBrokerId": "2",
            "offset": "5", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "9",
            "suggestWhichBrokerId": "0", "msgId": "x", "queueId": "0", "queueOffset": "1",
        }  # fmt: skip
        user = {"username": "evil", "password": "evil-1", "userType": "Super"}
        bodies: dict[int, Any] = {
            Code.GET_ROUTEINFO_BY_TOPIC: {"brokerDatas": [row], "queueDatas": [queues]},
            Code.GET_BROKER_CLUSTER_INFO: {
                "brokerAddrTable": {"b": row}, "clusterAddrTable": {"DefaultCluster": ["b"]},
            },
            Code.GET_BROKER_MEMBER_GROUP: {
                "brokerMemberGroup": {
                    "brokerAddrs": brokers, "brokerName": "b", "cluster": "DefaultCluster",
                }
            },
            Code.GET_ALL_CONSUMER_OFFSET: offsets,
            Code.GET_ALL_DELAY_OFFSET: {"offsetTable": {"1": 1 << 40}},
            Code.GET_ALL_TOPIC_CONFIG: {
                "topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 4}}
            },
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
                "subscriptionGroupTable": {"g": {"groupName": "g"}}
            },
            Code.GET_ALL_MESSAGE_REQUEST_MODE: {
                "messageRequestModeMap": {"T": {"g": {"mode": "POP", "popShareQueueNum": 1}}}
            },
            Code.AUTH_LIST_USERS: [user], Code.AUTH_GET_USER: user, Code.AUTH_LIST_ACL: [],
            Code.GET_BROKER_RUNTIME_INFO: {
                "table": {"commitLogMinOffset": "0", "commitLogMaxOffset": "1000"}
            },
            Code.EXCHANGE_BROKER_HA_INFO: {
                "escaped": [["SCHEDULE_TOPIC_XXXX", "", 0, 1 << 40]], "pops": [["open", {}]],
                "popsMore": True,
            },
            Code.GET_CONSUMER_LIST_BY_GROUP: {"consumerIdList": ["x"]},
            Code.CONTROLLER_GET_REPLICA_INFO: {"syncStateSet": [0, 1], "syncStateSetEpoch": 2},
        }  # fmt: skip
        return ext, bodies.get(code, {})

    # ---- the others ----

    def _other(self, sock: socket.socket, is_http: bool) -> None:
        chance = self._random
        if not is_http:  # the port for slaves
            at = chance.choice((0, 8, -1, 1 << 62))
            size = chance.choice((0, 8, 32_768, -1, 1 << 30))
            sock.sendall(struct.pack(">qi", at, size) + chance.randbytes(min(max(size, 0), 4096)))
            return
        value = {"master": 1, "epoch": 3, "in_sync": [1], "set_number": 1, "brokers": {"1": {}}}
        text = json.dumps(value if chance.random() < 0.5 else self._mutated(value))
        row = {"key": "eA==", "value": base64.b64encode(text.encode()).decode()}
        found: Any = {
            "succeeded": True, "ID": "7", "result": {"TTL": "3"}, "token": "t",
            "responses": [{"response_range": {"kvs": [row]}}, {"response_range": {}}],
        }  # fmt: skip
        if chance.random() < 0.5:
            found = self._mutated(found)
        sock.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(found).encode())
        if chance.random() < 0.1:
            for _ in range(64):
                sock.sendall(b" " * MIB)
        sock.close()
