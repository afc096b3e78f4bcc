"""The official mqadmin and a group under Apache's controller that has a broker of ours and one of
Java's: what it says of one is what it says of the other."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import controllers
import launch
from admin import Admin
from controllers import Controller, Sender, member_of

pytestmark = [pytest.mark.java, pytest.mark.long]

NAME = "broker-a"
#: Broker 1 is ours, broker 2 is Java's.
MAKES = ("ours", "java")


@dataclass
class Mixed:
    under: Controller
    admin: Admin
    peers: list[launch.Peer]

    def elect(self, number: int) -> str:
        """Makes it the master; what the tool says, without names of its own."""
        words = ("-a", self.under.address, "-b", number, "-c", "DefaultCluster", "-bn", NAME)
        said = self.admin.run("electMaster", *words)
        heir = self.peers[number - 1].broker
        launch.wait(f"the move; {said}", lambda: self.under.master(NAME) == heir)
        launch.wait("both in sync", lambda: len(self.under.in_sync(NAME)) == 2)
        return self.alike(said)

    def alike(self, said: str) -> str:
        """Addresses and numbers are no difference."""
        for peer in self.peers:
            said = said.replace(peer.broker, "BROKER")
        return re.sub(r"\d+", "N", said)


@pytest.fixture(scope="module")
def mixed(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    with ExitStack() as stack, controllers.controller(folder / "controller") as under:
        peers = []
        for number, make in enumerate(MAKES, 1):
            peer = member_of(make, under, folder / make, NAME)
            peer.broker_server.start()
            stack.callback(peer.broker_server.stop)
            peers.append(peer)
            launch.wait(
                f"{number} in sync\n{peer.broker_server.said()}",
                lambda number=number: len(under.in_sync(NAME)) == number,
            )
        with Sender(under.names) as sender:
            sender.wait(50)
        admin = Admin(under.names, folder)
        stack.callback(admin.close)
        yield Mixed(under, admin, peers)


def test_get_broker_epoch_says_of_ours_what_it_says_of_javas(mixed: Mixed) -> None:
    for words in (("-b", NAME), ("-c", "DefaultCluster")):
        said = mixed.admin("getBrokerEpoch", *words)
        parts = [part for part in said.split("#clusterName") if "#brokerAddr" in part]
        assert len(parts) == 2
        # The tool goes through the set's members in the order of a hash map.
        ours, javas = (next(part for part in parts if peer.broker in part) for peer in mixed.peers)
        epochs = [re.findall(r"#Epoch: .*", part) for part in (ours, javas)]
        assert epochs[0] == epochs[1] != []
        assert mixed.alike(ours).strip() == mixed.alike(javas).strip()


def test_elect_master_and_get_sync_state_set_say_the_same_of_either_master(mixed: Mixed) -> None:
    moves, sets = [], []
    for number in (2, 1):
        moves.append(mixed.elect(number))
        said = mixed.admin.run("getSyncStateSet", "-a", mixed.under.address, "-b", NAME)
        assert f"#MasterBrokerId\t{number}\n" in said
        assert f"#MasterAddr\t{mixed.peers[number - 1].broker}\n" in said
        assert said.count("InSyncReplica:") == said.count("alive=true") == 2
        sets.append(mixed.alike(said))
    assert moves[0] == moves[1] != ""
    assert sets[0] == sets[1]


def test_get_controller_meta_data_names_the_leader_that_ours_asks(mixed: Mixed) -> None:
    said = mixed.admin.run("getControllerMetaData", "-a", mixed.under.address)
    assert f"#ControllerLeaderAddress\t{mixed.under.address}\n" in said


def test_ha_status_reads_the_fields_that_ours_adds(mixed: Mixed) -> None:
    said = []
    for number in (2, 1):
        mixed.elect(number)
        master = mixed.peers[number - 1].broker
        shown = mixed.admin.until(lambda text: "OK" in text, "haStatus", "-b", master)
        said.append(re.sub(" +", " ", mixed.alike(shown)))
    assert "#InSyncSlaveNum\tN" in said[1]
    assert said[0] == said[1]
