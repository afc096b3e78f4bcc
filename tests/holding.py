"""A broker in a process of its own, in which no Python runs while a test wants it so."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from waiting import BOUND_S

from broker.remoting.selfsigned import self_signed

__all__ = ["HeldBroker", "broker_process", "tls_of_server"]

ROOT = Path(__file__).resolve().parents[1]

#: A broker whose process reads one byte of its standard input in a C function that keeps the
#: interpreter's lock (ctypes.PyDLL does not release it): no Python runs there until it has come.
#: Then clients go that were not heard of while it was held.
HELD = """
import ctypes, json, sys, time
from broker.broker import Broker
from broker.remoting.tls import TlsSettings

async def drop_the_silent(clients, since):
    clients._expire_s = time.monotonic() - since
    clients.scan()

def main():
    settings = json.loads(sys.argv[2])
    kind, tls = settings.pop("kind", "NORMAL"), TlsSettings.from_names(settings.pop("tls", {}))
    with Broker(
        sys.argv[1], listenPort=0, brokerName="DEFAULT_BROKER", tls=tls, **settings
    ) as broker:
        broker.create_topic("T", queues=1, message_type=kind)
        print(broker.port, broker.grpc_port, flush=True)
        libc, byte = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
        while sys.stdin.buffer.raw.read(1) == b"h":
            since, interval = time.monotonic(), sys.getswitchinterval()
            sys.setswitchinterval(3600)  # nobody gets it between the two calls
            time.sleep(0.01)  # whoever had asked for it before
            libc.write(1, b"held\\n", 5)
            libc.read(0, byte, 1)
            sys.setswitchinterval(interval)
            broker.run(drop_the_silent(broker.services.clients, since))
            print("free", flush=True)

main()
"""


class HeldBroker:
    def __init__(self, process):
        self.process = process
        self.port, self.grpc_port = map(int, process.stdout.readline().split())

    def _say(self, byte, expected):
        self.process.stdin.write(byte)
        self.process.stdin.flush()
        assert self.process.stdout.readline() == expected

    def hold(self):
        """From now on no Python runs in the broker's process."""
        self._say(b"h", b"held\n")

    def let_go(self):
        self._say(b"x", b"free\n")


def tls_of_server(folder):
    """Settings of a server's own certificate, whose files are made in the folder."""
    cert, key = self_signed("localhost")
    (folder / "server.pem").write_text(cert)
    (folder / "server.key").write_text(key)
    return {
        "tls.server.certPath": str(folder / "server.pem"),
        "tls.server.keyPath": str(folder / "server.key"),
    }


@contextmanager
def broker_process(path, **settings):
    words = [sys.executable, "-c", HELD, str(path), json.dumps(settings)]
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        try:
            yield HeldBroker(process)
            process.stdin.close()
            assert process.wait(BOUND_S) == 0
        finally:
            process.kill()
