"""What a session costs: the same real kernel with and without one, in turns, medians over rounds.

Start to first answer, one small execution, one large output, many small outputs, and an interrupt. Machines are noisy:
read ratios, and look at the spread before believing a small difference.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from checks.parts.place import LOCAL_KERNEL, SESSION_KERNEL, Place, install_session_kernel, private_place

MANY = "from IPython.display import display\nfor i in range({0}): display({{'text/plain': str(i)}}, raw=True)"
LARGE = "from IPython.display import display\ndisplay({{'text/plain': 'x' * {0}}}, raw=True)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    found: dict[tuple[str, str], list[float]] = {}
    with private_place() as place:
        install_session_kernel(place)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for kernel_name in (LOCAL_KERNEL, SESSION_KERNEL):
                for what, value in _measure(kernel_name, place):
                    found.setdefault((what, kernel_name), []).append(value)
    _print(found)
    return 0


def _measure(kernel_name: str, place: Place) -> Iterator[tuple[str, float]]:
    started = time.perf_counter()
    with _kernel(kernel_name, place) as (manager, client):
        yield "start to first answer, s", time.perf_counter() - started
        _seconds(client, "pass")
        times = sorted(_seconds(client, "pass") * 1000 for _ in range(300))
        yield "execute, p50 ms", times[150]
        yield "execute, p99 ms", times[297]
        yield "one output of 50 MB, s", _seconds(client, LARGE.format(50_000_000))
        yield "900 outputs at once, s", _seconds(client, MANY.format(900))
        yield "interrupt of a loop, ms", statistics.median(_interrupt(manager, client) * 1000 for _ in range(5))


@contextmanager
def _kernel(kernel_name: str, place: Place) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager = KernelManager(kernel_name=kernel_name)
    manager.start_kernel(cwd=str(place.work))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def _seconds(client: BlockingKernelClient, code: str) -> float:
    started = time.perf_counter()
    client.execute_interactive(code, output_hook=lambda message: None, timeout=300)
    return time.perf_counter() - started


def _interrupt(manager: KernelManager, client: BlockingKernelClient) -> float:
    request = client.execute("print('it runs', flush=True)\nwhile True: pass")
    while client.get_iopub_msg(timeout=30)["msg_type"] != "stream":
        pass
    started = time.perf_counter()
    manager.interrupt_kernel()
    while client.get_shell_msg(timeout=30)["parent_header"].get("msg_id") != request:
        pass
    took = time.perf_counter() - started
    _drain(client.get_iopub_msg)
    return took


def _drain(receive: Callable[..., dict[str, object]]) -> None:
    """Take what an interrupted cell still said, up to its end."""
    while True:
        message = receive(timeout=30)
        content = message["content"]
        if message["msg_type"] == "status" and isinstance(content, dict) and content["execution_state"] == "idle":
            return


def _print(found: dict[tuple[str, str], list[float]]) -> None:
    print(f"{'':28} {'ordinary kernel':>24} {'session':>24}")
    for what in dict.fromkeys(what for what, _ in found):
        columns = []
        for kernel_name in (LOCAL_KERNEL, SESSION_KERNEL):
            values = found[what, kernel_name]
            columns.append(f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})")
        print(f"{what:28} {columns[0]:>24} {columns[1]:>24}")


if __name__ == "__main__":
    sys.exit(main())
