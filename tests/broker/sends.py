"""Generated frames of everything that puts a message: sends of all codes in both header encodings,
properties in every spelling, batches, halves, retries, delays, repeats, hostile values."""

from __future__ import annotations

import struct

from broker.wire import codec
from broker.wire.command import BINARY, JSON, ONEWAY, Command

__all__ = ["BORN_MS", "GROUP", "TOPICS", "Sends"]

BORN_MS = 1_700_000_000_000
GROUP = "readers"
#: Those that both sides make before the first frame: name, queues, perm.
TOPICS = (
    ("orders", 4, 6), ("once", 4, 6), ("single", 1, 6), ("sealed", 4, 4), ("q" * 127, 2, 6),
    (f"%RETRY%{GROUP}", 1, 6),
)  # fmt: skip
_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip
_BOOLEANS = ("true", "TRUE", "True", "tRuE", "false", "False", "FALSE", "no", "1", "", " true")
_NUMBERS = (
    "0", "1", "2", "3", "4", "5", "17", "-1", "-2147483648", "2147483647", "2147483648", "x", "",
    " 1", "1 ", "+1", "1_0", "01", "0x1", "1.0", "\u0663", "9" * 30, "-",
)  # fmt: skip
_LEVELS = (
    "0", "1", "2", "3", "17", "18", "19", "99", "-1", "x", " 3", "3 ", "+3", "03", "3_0", "",
    "2147483647", "2147483648", "9" * 30, "\u0663",
)  # fmt: skip
_FLAGS = ("0", "0", "0", "1", "2", "4", "8", "12", "16", "32", "48", "255", "-1", "x", "")
_SECONDS = ("0", "5", "60", "-1", "x", "", "99999999999", "+5")
_IDS = ("FD0123456789", "A", "B", "u" * 300)
#: Properties that say something to the broker, and what they may say.
_MEANT = {
    "WAIT": _BOOLEANS,
    "TRAN_MSG": _BOOLEANS,
    "DELAY": _LEVELS,
    "CHECK_IMMUNITY_TIME_IN_SECONDS": _SECONDS,
    "PGROUP": ("makers", "makers", "makers", "", "g" * 255, "g" * 256, "m\u00e4rz"),
    "TIMER_DELAY_SEC": _NUMBERS,
    "TIMER_DELAY_MS": _NUMBERS,
    "TIMER_DELIVER_MS": _NUMBERS,
    "TIMER_OUT_MS": ("1", "x"),
    "POP_CK": ("1 2 3", ""),
    "INNER_MULTI_DISPATCH": ("%LMQ%a,%LMQ%b", ""),
    "REAL_TOPIC": ("elsewhere", "RMQ_SYS_TRANS_HALF_TOPIC", ""),
    "REAL_QID": ("7", "-1", "x"),
    "__transactionId__": ("forged", ""),
    "TRANSACTION_CHECK_TIMES": ("3", "x"),
    "TRAN_PREPARED_QUEUE_OFFSET": ("9",),
    "MSG_REGION": ("elsewhere", ""),
    "TRACE_ON": ("false", ""),
    "CLUSTER": ("other", ""),
    "RETRY_TOPIC": ("orders",),
    "ORIGIN_MESSAGE_ID": ("0" * 32,),
    "REPLY_TO_CLIENT": ("p1", "nobody"),
    "__CRC32#": ("1234567890",),
}  # fmt: skip
_PLAIN = (
    ("TAGS", "a"), ("TAGS", "b c"), ("KEYS", "k1 k2"), ("k", "v"), ("\u00fc", "\u4e2d\u6587"),
    ("__SHARDINGKEY", "s"), ("empty", ""), ("", "nameless"), ("quote", '"\\\n\t'),
    ("wait", "false"), ("W", "x"), ("long", "y" * 900),
)  # fmt: skip


class Sends:
    """The frames of one seed; `places` are those of messages stored so far, which later frames may
    name: physical offsets of messages, and (queue offset, physical offset) of halves."""

    def __init__(self, rng):
        self.rng = rng
        self.messages = []
        self.halves = []
        self._count = 0

    def next(self):
        """A frame, as bytes."""
        draw = self.rng.random()
        if draw < 0.04 and self.messages:
            made = self._send_back()
        elif draw < 0.09 and self.halves:
            made = self._end()
        else:
            made = self._send()
        self._count += 1
        made.opaque = self._count
        made.serialize = self.rng.choice((JSON, BINARY))
        if self.rng.random() < 0.03:
            made.flag |= ONEWAY
        made.version = self.rng.choice((479, 479, 120))
        return codec.encode(made)

    # ---- sends ----

    def _send(self):
        rng = self.rng
        code = rng.choice((10, 10, 310, 310, 310, 320, 320, 320, 324, 325))
        batch = code == 320 or rng.random() < 0.03
        fields = self._header(batch)
        self._spoil(fields)
        if code in (10, 324):
            fields = {_NAMES.get(letter, letter): value for letter, value in fields.items()}
        elif rng.random() < 0.01:
            fields["topic"] = "orders"  # a name of the other version
        return Command(code, fields, self._batch() if batch else self._body())

    def _header(self, batch):
        rng = self.rng
        return {
            "a": "makers", "b": self._topic(), "c": rng.choice(("TBW102", "TBW102", "none", "")),
            "d": "4", "e": str(rng.choice((0, 0, 0, 1, 2, 3, -1))),
            "f": rng.choice(_FLAGS) if rng.random() < 0.1 else "0",
            "g": str(BORN_MS + self._count), "h": str(rng.randrange(-3, 9)),
            "i": self._properties(), "j": rng.choice(("0", "0", "0", "1", "16", "17")),
            "k": rng.choice(("false", "true")), "l": rng.choice(("16", "1", "0", "-1")),
            "m": "true" if batch else "false", "n": "broker-a",
        }  # fmt: skip

    def _spoil(self, fields):
        rng = self.rng
        if rng.random() < 0.1:
            letter = rng.choice("bdefghjklm")
            values = {"b": ("", " ", "a b", "x" * 128), "f": _FLAGS, "k": _BOOLEANS,
                      "m": _BOOLEANS}.get(letter, _NUMBERS)  # fmt: skip
            fields[letter] = rng.choice(values)
        if rng.random() < 0.05:
            del fields[rng.choice(sorted(fields))]

    def _topic(self):
        rng = self.rng
        if rng.random() < 0.8:
            return rng.choice(("orders", "once"))
        return rng.choice(
            [name for name, _, _ in TOPICS]
            + [f"new-{rng.randrange(12)}", f"%RETRY%{GROUP}", "%RETRY%strangers", f"%DLQ%{GROUP}",
               "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102",
               "DefaultCluster_REPLY_TOPIC", "q" * 128]
        )  # fmt: skip

    def _properties(self):
        rng = self.rng
        pairs = [rng.choice(_PLAIN) for _ in range(rng.choice((0, 0, 1, 2, 4)))]
        if rng.random() < 0.35:
            names = rng.sample(sorted(_MEANT), rng.choice((1, 1, 2, 3)))
            pairs += [(name, rng.choice(_MEANT[name])) for name in names]
        if rng.random() < 0.25:  # a half as clients send it
            pairs += [("TRAN_MSG", "true"), ("PGROUP", "makers")]
        if rng.random() < 0.9:
            fresh = (
                f"U{self._count}" if rng.random() < 0.7 else f"U{rng.randrange(1 + self._count)}"
            )
            pairs.append(("UNIQ_KEY", fresh if rng.random() < 0.95 else rng.choice(_IDS)))
        if pairs and rng.random() < 0.05:
            name, _ = rng.choice(pairs)
            pairs.append((name, rng.choice(_MEANT.get(name, ("again",)))))
        rng.shuffle(pairs)
        text = "".join(f"{name}\1{value}\2" for name, value in pairs)
        return self._malformed(text) if rng.random() < 0.06 else text

    def _malformed(self, text):
        rng = self.rng
        return rng.choice((
            text.rstrip("\2"), text + "loose", text + "\1x\2", "\2\2" + text, text + "a\1b\1c\2",
            text.replace("\2", "\1", 1), text + "\0\1\0\2", text + "p\1" + "x" * 33000 + "\2",
        ))  # fmt: skip

    def _body(self):
        rng = self.rng
        size = rng.choice((0, 1, 5, 5, 5, 50, 50, 300, 300)) if rng.random() < 0.98 else 5000
        return rng.randbytes(size)

    def _batch(self):
        rng = self.rng
        if rng.random() < 0.1:
            return self._body()
        each_has_id = rng.random() < 0.7
        body = b"".join(self._item(each_has_id) for _ in range(rng.choice((1, 2, 3, 8))))
        draw = rng.random()
        if draw < 0.05:
            return body[: rng.randrange(len(body))]
        return body + rng.randbytes(3) if draw < 0.08 else body

    def _item(self, has_id):
        rng = self.rng
        pairs = [rng.choice(_PLAIN)] if rng.random() < 0.3 else []
        if rng.random() < 0.1:
            name = rng.choice(sorted(_MEANT))
            pairs.append((name, rng.choice(_MEANT[name])))
        if has_id or rng.random() < 0.5:
            pairs.append(("UNIQ_KEY", f"I{rng.randrange(40 + self._count)}"))
        text = "".join(f"{name}\1{value}\2" for name, value in pairs).encode()
        if rng.random() < 0.2:
            text = text.rstrip(b"\2")
        body = rng.randbytes(rng.randrange(40))
        head = struct.pack(">5i", 22 + len(body) + len(text), 0, 0, rng.randrange(9), len(body))
        return head + body + struct.pack(">H", len(text)) + text

    # ---- what names a message that is there ----

    def _send_back(self):
        rng = self.rng
        offset = rng.choice(self.messages) + (rng.random() < 0.03)
        fields = {
            "offset": str(offset), "group": rng.choice((GROUP, GROUP, GROUP, "strangers")),
            "delayLevel": rng.choice(("0", "0", "1", "3", "18", "99", "-1", "x")),
            "originMsgId": "0" * 32, "originTopic": "orders", "unitMode": "false",
            "maxReconsumeTimes": rng.choice(("16", "0", "2", "")),
        }  # fmt: skip
        return Command(36, fields)

    def _end(self):
        rng = self.rng
        offset, physical = rng.choice(self.halves)
        fields = {
            "producerGroup": rng.choice(("makers", "makers", "makers", "others")),
            "tranStateTableOffset": str(offset), "commitLogOffset": str(physical),
            "commitOrRollback": rng.choice(("8", "8", "8", "12", "0", "5")),
            "fromTransactionCheck": rng.choice(("false", "true")), "msgId": "x",
            "transactionId": "x",
        }  # fmt: skip
        return Command(37, fields)
