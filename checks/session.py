"""A notebook in a session says exactly what it says in an ordinary kernel, in every way a person may run it.

nbclient with and without a session, then a Jupyter server with a websocket, a synchronous kernel manager, and
papermill. `--quick` stops after nbclient.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from openai4s_provisioner.orchestration.readiness import Condition

from .parts.leftovers import described, processes_of
from .parts.notebook import Conditions, run_notebook
from .parts.place import LOCAL_KERNEL, REPOSITORY, SESSION_KERNEL, Place, install_session_kernel, private_place
from .parts.report import Report, run
from .parts.server import Channels, Server, running_server
from .parts.transcript import Transcript, differences
from .parts.ways import run_in_channels, run_papermill, run_synchronously

NOTEBOOK = REPOSITORY / "demo" / "session.ipynb"
COMM_CELL, MESSAGES_CELL = 9, 13


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="nbclient only")
    quick = parser.parse_args().quick

    def body(report: Report) -> None:
        with private_place() as place:
            report.say(f"installed {install_session_kernel(place)}")
            local = with_nbclient(report, place)
            if not quick:
                asyncio.run(_with_a_server(report, place, local))
                _synchronously(report, place, local)
                _with_papermill(report, place)
            nothing_left(report, place)

    return run("session", body)


def with_nbclient(report: Report, place: Place, session_kernel: str = SESSION_KERNEL) -> Transcript:
    """The notebook in an ordinary kernel, then in a session; what the ordinary kernel said."""
    report.section("nbclient, ordinary kernel")
    local, local_s, _ = run_notebook(NOTEBOOK, LOCAL_KERNEL, place.work)
    report.figure("seconds, messages, megabytes", f"{local_s:.1f}, {local.messages}, {local.megabytes:.1f}")
    report.section("nbclient, session")
    conditions = Conditions(report.say)
    session, session_s, _ = run_notebook(NOTEBOOK, session_kernel, place.work, conditions)
    report.figure("seconds, messages, megabytes", f"{session_s:.1f}, {session.messages}, {session.megabytes:.1f}")
    report.expect(set(conditions.seconds) == set(Condition), "all four conditions came true, each announced")
    _same(report, "nbclient", local, session)
    return local


def _same(report: Report, way: str, expected: Transcript, actual: Transcript) -> None:
    found = list(differences(expected, actual))
    for difference in found[:10]:
        report.figure("difference", difference)
    report.expect(not found, f"{way}: every message is the one an ordinary kernel sends ({actual.messages} messages)")
    answered = actual.cells[COMM_CELL].streams.get("stdout", "") if COMM_CELL in actual.cells else ""
    report.expect(
        answered.startswith("20 of 20 came back"), f"{way}: the comm's messages went there and back, bytes intact"
    )
    counted = actual.cells[MESSAGES_CELL].counts["update_display_data"] if MESSAGES_CELL in actual.cells else 0
    report.expect(counted == 100_000, f"{way}: {counted} of 100000 small messages arrived")
    report.expect(actual.megabytes >= 50, f"{way}: {actual.megabytes:.0f} MB of output arrived")


async def _with_a_server(report: Report, place: Place, local: Transcript) -> None:
    report.section("a Jupyter server, REST and websocket")
    async with running_server(place.work, place.root / "server.log") as server:
        started = time.monotonic()
        session = await server.started_session(SESSION_KERNEL, "session.ipynb")
        kernel_id = session["kernel"]["id"]
        report.figure("a kernel was asked for and ready after", f"{time.monotonic() - started:.2f} s")
        async with server.channels(kernel_id) as channels:
            transcript = await run_in_channels(NOTEBOOK, channels)
            _same(report, "server", local, transcript)
            await _questions(report, channels)
            await _interrupt(report, server, channels, kernel_id)
        gone = await server.ask("DELETE", f"api/sessions/{session['id']}")
        report.expect(gone.code == 204, f"server: deleting the session answers 204 (it answered {gone.code})")
        report.expect(server.stop() in (0, -15), "server: it ends when asked to")


async def _questions(report: Report, channels: Channels) -> None:
    said: list[str] = []

    def heard(message: dict[str, object]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and isinstance(content, dict):
            said.append(content["text"])

    await channels.execute("print('hello', input('name? '))", heard, answer="wörld", timeout_s=60)
    report.expect("hello wörld" in "".join(said), "server: input() asks and gets its answer")
    said.clear()
    code = "import getpass; print(len(getpass.getpass('secret? ')))"
    await channels.execute(code, heard, answer="12345", timeout_s=60)
    report.expect("".join(said).strip() == "5", "server: getpass() asks and gets its answer")


async def _interrupt(report: Report, server: Server, channels: Channels, kernel_id: str) -> None:
    started = asyncio.Event()
    running = asyncio.create_task(channels.execute("import time; time.sleep(1000)", started=started, timeout_s=60))
    await asyncio.wait_for(started.wait(), 30)
    asked = time.monotonic()
    await server.ask("POST", f"api/kernels/{kernel_id}/interrupt")
    reply = await running
    report.figure("interrupt to reply", f"{(time.monotonic() - asked) * 1000:.0f} ms")
    report.expect(reply.get("ename") == "KeyboardInterrupt", "server: an interrupt ends a sleeping cell")


def _synchronously(report: Report, place: Place, local: Transcript) -> None:
    report.section("a synchronous KernelManager with a blocking client")
    transcript, said = run_synchronously(NOTEBOOK, SESSION_KERNEL, place.work)
    _same(report, "blocking client", local, transcript)
    report.expect(said == "hello blocking client", "blocking client: input() asks and gets its answer")


def _with_papermill(report: Report, place: Place) -> None:
    report.section("papermill")
    expected = run_papermill(NOTEBOOK, LOCAL_KERNEL, place.work, place.root / "local.ipynb")
    actual = run_papermill(NOTEBOOK, SESSION_KERNEL, place.work, place.root / "session.ipynb")
    for one, two in zip(expected[1], actual[1], strict=False):
        if one != two:
            report.figure("difference", f"{one[1][:300]} became {two[1][:300]}")
    report.figure("ends with, outputs", f"{actual[0]} (on purpose), {len(actual[1])}")
    report.expect(
        len(actual[1]) > 10 and actual == expected, "papermill: ends alike, every output as with an ordinary kernel"
    )


def nothing_left(report: Report, place: Place) -> None:
    report.section("afterwards")
    deadline = time.monotonic() + 20
    while (left := processes_of(str(place.root))) and time.monotonic() < deadline:
        time.sleep(0.1)
    report.expect(not left, f"no process is left {described(left)}".strip())


if __name__ == "__main__":
    sys.exit(main())
