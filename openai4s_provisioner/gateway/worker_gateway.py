"""The server's end of the tunnel: one thread that takes workers in and offers their kernels to Jupyter.

Wires listener, reception, lobby, roster and endpoints around one loop, and is the only door to them from other
threads. Everything that a start made (thread, sockets, files) is gone after `stop`; each start builds its parts anew,
so what was still on its way when a former one stopped finds nobody to publish to.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..orchestration.errors import StateError
from ..orchestration.models import Registration
from ..transport.link import Link
from ..transport.loop import Loop
from ..transport.tls import server_context
from .advertise import advertised, doubts, own_addresses
from .certificate import Certificate
from .desk import FrontDesk, GatewayObserver, LinkState
from .endpoint import Endpoint, KernelEndpoint
from .limits import Limits
from .listen_address import AdvertisedAddress, ListenAddress
from .listener import UnixListener, check_socket_path, prepare_folder
from .lobby import Lobby
from .network_listener import NetworkListener
from .reception import Census, Reception
from .rendezvous import Arrival
from .roster import Roster

__all__ = ["Endpoint", "FrontDesk", "GatewayObserver", "LinkState", "Registration", "WorkerGateway"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_SOCKET_NAME = "gw.sock"
_REMEMBERED_LAUNCHES = 1024
_LAUNCH_ID_LENGTH = 128


class GatewayStopped(StateError):
    """The gateway was asked for something while it was not running, or was just stopping."""


@dataclass(frozen=True)
class NetworkDoor:
    """Where workers of other machines come in, and what they know us by."""

    listen: ListenAddress
    advertise: tuple[AdvertisedAddress, ...]
    certificate: Certificate


class WorkerGateway:
    """Every method may be called from any thread. `folder` must be ours alone; it is made when it is missing."""

    def __init__(
        self,
        folder: Path,
        desk: FrontDesk,
        observer: GatewayObserver,
        limits: Limits | None = None,
        network: NetworkDoor | None = None,
    ) -> None:
        """Without `network` no port is opened."""
        self._folder = folder
        self._network = network
        self._desk = desk
        self._observer = observer
        self._limits = limits or Limits()
        self._running: _Running | None = None
        self._guard = threading.Lock()

    @property
    def address(self) -> str:
        return f"unix:{self._folder / _SOCKET_NAME}"

    @property
    def network_addresses(self) -> tuple[str, ...]:
        """``tls:host:port`` as they are now: a machine's addresses change. Empty while no port is open."""
        running, network = self._running, self._network
        if network is None or running is None or running.network is None:
            return ()
        return advertised(running.network.bound, network.advertise, own_addresses())

    @property
    def certificate_sha256(self) -> str | None:
        return None if self._network is None else self._network.certificate.sha256

    def start(self) -> None:
        """Open the doors. Raises ConfigError (an address that cannot be) or StateError (a place that is not usable)."""
        with self._guard:
            if self._running is None:
                self._running = _Running(self._folder, self._desk, self._observer, self._limits, self._network)
                self._voice_doubts(self._running)

    def _voice_doubts(self, running: _Running) -> None:
        if self._network is None or running.network is None:
            return
        bound = running.network.bound
        _log.info("listening for workers on %s, port %d", ", ".join(bound.hosts), bound.port)
        for doubt in doubts(bound, self._network.advertise, own_addresses()):
            _log.warning("%s", doubt)

    def stop(self) -> None:
        """Close handshakes, then links and endpoints; join the thread; remove the files. Idempotent."""
        with self._guard:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def send(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> bool:
        """Queue a message for a worker; False when no such worker is registered. A reconnecting one gets it later."""
        with contextlib.suppress(GatewayStopped):
            running = self._must_run()
            return running.call(running.roster.send, allocation_id, rank, message)
        return False

    def hold(self, allocation_id: str, is_paused: bool) -> None:
        """Whether the links of an allocation stay, however long they are silent."""
        with contextlib.suppress(GatewayStopped):
            running = self._must_run()
            running.call(running.roster.hold, allocation_id, is_paused)

    def open_endpoint(self, allocation_id: str, launch_id: str, name: str) -> Endpoint:
        """Bind the five sockets of one launch; an endpoint of that name or launch is replaced."""
        return self._must_run().open_endpoint(allocation_id, launch_id, name)

    def close_endpoint(self, launch_id: str) -> None:
        with contextlib.suppress(GatewayStopped):
            running = self._must_run()
            running.call(running.close_endpoint, launch_id)

    def has_client(self, launch_id: str) -> bool:
        """Whether anybody is connected to this launch's endpoint, or waits to be."""
        with contextlib.suppress(GatewayStopped):
            running = self._must_run()
            return running.call(running.has_client, launch_id)
        return False

    def forget(self, allocation_id: str) -> None:
        """The allocation is over: close its links."""
        with contextlib.suppress(GatewayStopped):
            running = self._must_run()
            running.call(running.roster.forget, allocation_id)

    def census(self) -> Census:
        """How many peers wait, were welcomed, were over the limit, and were refused by kind, since the start."""
        running = self._must_run()
        return running.call(running.reception.census)

    def _must_run(self) -> _Running:
        running = self._running
        if running is None:
            raise GatewayStopped("The gateway is not running.")
        return running


class _Running:
    """What exists between a start and its stop."""

    def __init__(
        self, folder: Path, desk: FrontDesk, observer: GatewayObserver, limits: Limits, network: NetworkDoor | None
    ) -> None:
        self._folder = folder
        self._observer = observer
        self._limits = limits
        self._endpoints: dict[str, KernelEndpoint] = {}
        self._ended_launches: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED_LAUNCHES)
        check_socket_path(str(folder / _SOCKET_NAME))
        self._made_folder = prepare_folder(folder)
        self.loop = Loop()
        self.network: NetworkListener | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_folder)
            undo.callback(self.loop.close)
            self._listener = UnixListener(self.loop, str(folder / _SOCKET_NAME), limits.backlog)
            undo.callback(self._listener.close)
            if network is not None:
                self._tls = server_context(network.certificate.path, network.certificate.path)
                self.network = NetworkListener(self.loop, network.listen, limits.backlog)
            undo.pop_all()
        self.lobby = Lobby(self.loop, desk, limits, self._orphaned)
        self.roster = Roster(self.loop, self, limits, self.lobby, self._moved)
        self.reception = Reception(self.loop, desk, self.roster, limits)
        self._thread = threading.Thread(target=self._serve, name="openai4s-gateway", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._listener.start(self.reception.receive)
        if self.network is not None:
            self.network.start(lambda peer: self.reception.receive(peer, self._tls))
        self.lobby.start()
        self.loop.run()

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run it in the loop's thread and wait for the result. Raises what it raises, or GatewayStopped."""
        if threading.current_thread() is self._thread:
            return function(*arguments)
        result: Future[_T] = Future()
        try:
            self.loop.call_soon_threadsafe(_resolve, result, function, arguments)
        except RuntimeError:
            raise GatewayStopped("The gateway has stopped.") from None
        concurrent.futures.wait([result], self._limits.stop_s)
        if not result.done():
            raise GatewayStopped(f"The gateway did not answer within {self._limits.stop_s:g} s.")
        return result.result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._shut)
        self._thread.join(self._limits.stop_s)
        if self._thread.is_alive():
            _log.error("the gateway's thread did not end within %.0f s", self._limits.stop_s)
            return
        self.loop.close()
        self._remove_folder()

    def _shut(self) -> None:
        for close in (
            self._listener.close,
            self._close_network,
            self.reception.close,
            self.lobby.close,
            self._close_endpoints,
            self.roster.close,
        ):
            try:
                close()
            except Exception:
                _log.exception("while the gateway stops")
        self.loop.stop()

    def _close_network(self) -> None:
        if self.network is not None:
            self.network.close()

    def _remove_folder(self) -> None:
        if self._made_folder:
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    # ---- endpoints

    def open_endpoint(self, allocation_id: str, launch_id: str, name: str) -> Endpoint:
        return self.call(self._open_endpoint, allocation_id, launch_id, str(self._folder / name))

    def _open_endpoint(self, allocation_id: str, launch_id: str, ip: str) -> Endpoint:
        for former in [one for one in self._endpoints.values() if one.launch_id == launch_id or one.ip == ip]:
            self.close_endpoint(former.launch_id)
        opened = KernelEndpoint(self.loop, ip, allocation_id, launch_id)
        self._endpoints[launch_id] = opened
        if (allocation_id, launch_id) in self._ended_launches:
            opened.kernel_gone()  # it died first: its clients wait, instead of coming back for ever
        opened.lead_to(self._link_for(opened))
        return opened.public

    def close_endpoint(self, launch_id: str) -> None:
        endpoint = self._endpoints.pop(launch_id, None)
        if endpoint is not None:
            endpoint.close()

    def has_client(self, launch_id: str) -> bool:
        endpoint = self._endpoints.get(launch_id)
        return endpoint is not None and endpoint.has_client

    def _close_endpoints(self) -> None:
        for launch_id in list(self._endpoints):
            self.close_endpoint(launch_id)

    def _link_for(self, endpoint: KernelEndpoint) -> Link | None:
        """Kernels run on the first rank."""
        return self.roster.link(endpoint.allocation_id, 0)

    # ---- what the parts tell

    def _moved(self, allocation_id: str, rank: int) -> None:
        for endpoint in self._endpoints.values():
            if rank == 0 and endpoint.allocation_id == allocation_id:
                endpoint.lead_to(self._link_for(endpoint))

    def _orphaned(self, arrival: Arrival) -> None:
        _log.info("rank %d of %s is here, and is not expected", arrival.place.rank, arrival.place.allocation_id)
        self.roster.expel(arrival)

    def worker_registered(self, registration: Registration, host: str, generation: str) -> None:
        self._observer.worker_registered(registration, host, generation)

    def worker_message(self, allocation_id: str, rank: int, message: Mapping[str, Any]) -> None:
        if message.get("type") == "kernel_exited":
            launch_id = str(message.get("launch_id"))[:_LAUNCH_ID_LENGTH]
            self._ended_launches.append((allocation_id, launch_id))
            endpoint = self._endpoints.get(launch_id)
            if endpoint is not None:
                endpoint.kernel_gone()
        self._observer.worker_message(allocation_id, rank, message)

    def worker_link(self, allocation_id: str, rank: int, state: LinkState) -> None:
        self._observer.worker_link(allocation_id, rank, state)


def _resolve(result: Future[_T], function: Callable[..., _T], arguments: tuple[Any, ...]) -> None:
    try:
        result.set_result(function(*arguments))
    except Exception as error:
        result.set_exception(error)
