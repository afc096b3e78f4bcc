"""An answer streamed to one session; broker, agent and screen in this process."""

import tempfile

from broker import Broker, Message

with tempfile.TemporaryDirectory() as folder, Broker(folder, listenPort=0) as broker:
    broker.create_topic("sessions", message_type="LITE")
    broker.create_group("screens", lite_of="sessions")
    with broker.producer() as agent, broker.lite_consumer("screens", "sessions") as screen:
        screen.subscribe("session-42")
        for word in ("it", "is", "done"):
            agent.send(Message("sessions", word.encode(), lite_topic="session-42"))
        for part in screen:
            print(part.body.decode())
            if part.body == b"done":
                break
