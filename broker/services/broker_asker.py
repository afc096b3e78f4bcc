"""What a broker or a proxy asks brokers that name servers have told it of: signed for the one that
is asked, and believed if it proves that it knows the secret (docs/trust.md)."""

from __future__ import annotations

from broker.access.addresses import Pattern, address_of, parse_patterns
from broker.access.proof import ASKS_FOR_PROOF, HA_ADDRESS, SEALED, is_proven, unseal
from broker.access.recipients import recipients_of
from broker.access.signature import Credentials, sign
from broker.remoting.client import RemotingClient
from broker.remoting.connection import Connection
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import Peer
from pystore.errors import BadArgument

__all__ = ["BrokerAsker", "NotBelieved", "patterns_of"]

#: In the state of a connection: its other end knows the secret, and takes slaves at this address.
_PROVEN = "proven"


class NotBelieved(ConnectionError):
    """Somebody answers there who may be anybody."""


def patterns_of(name: str, text: str) -> list[Pattern]:
    """Reads addresses of a setting, separated by ';'. Raises: BadArgument."""
    try:
        return parse_patterns(text)
    except ValueError as bad:
        raise BadArgument(f"{name}: {bad}") from None


class BrokerAsker:
    """Asks over `client`. credentials: what it signs with; None: nothing is signed, and only the
    address can be looked at. trusted: addresses of brokers that are believed without proof; empty:
    with credentials nobody's, else everybody's. takes_clear_passwords: of those, too."""

    def __init__(
        self,
        client: RemotingClient,
        credentials: Credentials | None,
        trusted: str = "",
        *,
        takes_clear_passwords: bool = False,
    ) -> None:
        """Raises: BadArgument."""
        self._takes_clear_passwords = takes_clear_passwords
        self._client, self._credentials = client, credentials
        self._trusted = patterns_of("trustedBrokers", trusted) if trusted else []
        self._everybody = not trusted and credentials is None

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        """Returns the answer of the broker at ``host:port``. Raises: NotBelieved, and what
        RemotingClient.request() raises."""
        connection = await self._client.connection(address, timeout_s)
        self.sign(address, connection, command)
        if not self._is_trusted(connection):
            await self._make_proven(address, connection, timeout_s)
        answer = await self._client.request_on(connection, command, timeout_s)
        if command.code == RequestCode.AUTH_GET_USER and answer.code == ResponseCode.SUCCESS:
            answer.body = self._unsealed(address, command, answer)
        return answer

    async def ha_address(self, address: str, timeout_s: float) -> str:
        """Returns where the broker at ``host:port`` has proven to take slaves; empty: it says
        nothing of it, or is believed without proof. Raises: as request()."""
        connection = await self._client.connection(address, timeout_s)
        if not self._is_trusted(connection):
            await self._make_proven(address, connection, timeout_s)
        return str(connection.state.get(_PROVEN, ""))

    def is_asked_over(self, address: str, peer: Peer) -> bool:
        """Says whether the broker at ``host:port`` is asked over this connection, and believed."""
        connection = self._client.connected(address)
        return connection is peer and connection is not None and self._is_trusted(connection)

    def sign(self, address: str, connection: Connection, command: Command) -> None:
        """Signs a request for the broker that the connection leads to."""
        if self._credentials is not None:
            sign(command, self._credentials, *recipients_of(address, connection.address))

    def _unsealed(self, address: str, command: Command, answer: Command) -> bytes:
        """Returns a user with the password. Raises: NotBelieved."""
        body = bytes(answer.body)
        try:
            row = mqjson.loads(body or b"{}")
            if not isinstance(row, dict):
                raise ValueError("the answer is not an object")
            if SEALED in row and self._credentials is not None:
                return unseal(command, self._credentials.secret_key, str(row[SEALED])).encode()
        except ValueError as bad:
            raise NotBelieved(f"what {address} says of a user is not believed: {bad}") from None
        if "password" in row and not self._takes_clear_passwords:
            raise NotBelieved(
                f"{address} tells passwords in clear, as Apache's brokers: users are not taken from"
                " there; make them here with mqadmin createUser or `pystore acl`"
            )
        return body

    def _is_trusted(self, connection: Connection) -> bool:
        host = address_of(connection.address[0])
        return (
            self._everybody
            or _PROVEN in connection.state
            or any(each.matches(host) for each in self._trusted)
        )

    async def _make_proven(self, address: str, connection: Connection, timeout_s: float) -> None:
        """Proves who asks. Raises: NotBelieved, and what RemotingClient.request() raises."""
        if self._credentials is None:
            raise NotBelieved(f"{address} is not among trustedBrokers")
        challenge = Command(ASKS_FOR_PROOF)
        self.sign(address, connection, challenge)
        answer = await self._client.request_on(connection, challenge, timeout_s)
        if is_proven(challenge, answer, self._credentials.secret_key):
            connection.state[_PROVEN] = answer.ext.get(HA_ADDRESS, "")
            return
        said = ""
        if answer.code != ResponseCode.SUCCESS:
            said = f" (it answered {answer.code} {(answer.remark or '')[:600]})"
        raise NotBelieved(
            f"{address} does not prove that it knows the secret of"
            f" {self._credentials.access_key}{said}: if it is a broker of Apache's, or has no"
            " access control, trustedBrokers has to name its address"
        )
