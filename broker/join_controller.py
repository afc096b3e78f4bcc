"""A broker joins the controller that its settings name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ssl import SSLContext

from broker.access.recipients import recipients_of
from broker.access.signature import sign
from broker.loop.safe_log import SafeLogger
from broker.services.access import inner_credentials
from broker.services.context import Services
from broker.services.controlled.continuity import Continuity
from broker.services.controlled.controller import Controller, ControllerRefused
from broker.services.controlled.controller_address import controller_of
from broker.services.controlled.member import GroupMember
from broker.services.etcd_address import SCHEME_TLS
from broker.services.replication.elected_role import ElectedRole
from broker.startup import Options
from broker.wire.command import Command

__all__ = ["join_controller"]

log = SafeLogger("broker.controlled")

#: A broker that has no number yet waits for its controller, which may be starting, too.
_WAIT_S, _RETRY_S = 30.0, 1.0
_IDENTITY = "brokerIdentity"


async def join_controller(
    o: Options,
    address: str,
    become: Callable[[ElectedRole], Awaitable[None]],
    services: Callable[[], Services | None],
) -> GroupMember:
    """Joins the controller. address: ``host:port`` that clients reach the broker at. Raises:
    OSError, TimeoutError, ValueError, ControllerRefused."""
    controller = _controller_of(o)
    is_new = not o.path.joinpath(_IDENTITY).exists()
    number = await _number(controller, address)
    elected = ElectedRole(number)
    o.take_role(elected)
    log.info("This broker has the number %d", number)
    timeout_ms = o.settings["controllerHeartBeatTimeoutMills"]
    continuity = Continuity(o.path / "brokerBoot", o.settings.file_mode, is_new)
    return GroupMember(controller, elected, become, o.take_role, services, timeout_ms, continuity)


async def _number(controller: Controller, address: str) -> int:
    loop = asyncio.get_running_loop()
    until = loop.time() + _WAIT_S
    while True:
        try:
            return await controller.number(address)
        except (OSError, TimeoutError, ControllerRefused) as failed:
            # Of two that ask for the same number at once one is refused, and asks for the next.
            if loop.time() >= until:
                raise
            log.warning("No number for this broker yet: %s", failed)
            await asyncio.sleep(_RETRY_S)


def _controller_of(o: Options) -> Controller:
    settings = o.settings
    credentials = inner_credentials(settings)

    def signed(command: Command, address: str) -> None:
        if credentials is not None:
            sign(command, credentials, *recipients_of(address, None))

    # The number comes before the store, which takes no folder that holds other files alone.
    (o.path / "commitlog").mkdir(parents=True, exist_ok=True)
    return controller_of(
        settings["controllerAddr"],
        settings["brokerClusterName"],
        settings["brokerName"],
        o.path / _IDENTITY,
        settings.file_mode,
        settings["controllerHeartBeatTimeoutMills"],
        signed,
        _tls_of(o),
    )


def _tls_of(o: Options) -> SSLContext | None:
    """Returns the TLS for a controller: etcd's address says whether it speaks TLS; who is trusted
    say the settings of TLS, if there are any (tls.client.*)."""
    if o.settings["controllerAddr"].startswith(SCHEME_TLS):
        return o.tls.client_context(True) if o.tls is not None else None
    return o.client_tls
