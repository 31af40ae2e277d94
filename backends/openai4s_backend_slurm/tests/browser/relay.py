"""Leads connections of one network to a port of another one: a browser's, to a server on a login host.

Started inside the other network, with a socket that listens in the first: ``relay.py DESCRIPTOR PORT``. A socket keeps
the network that it was made in. Ends with whoever started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

_AT_ONCE = 1 << 16


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_AT_ONCE):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _relay(listener: socket.socket, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()  # as a closed port looks
            return
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    server = await asyncio.start_server(serve, sock=listener)
    serving = asyncio.ensure_future(server.serve_forever())
    await asyncio.to_thread(sys.stdin.read)
    serving.cancel()


if __name__ == "__main__":
    asyncio.run(_relay(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
