"""Submits many commands at once, as `jupyter openai4s submit` does one, and waits for all of them to be over.

``storm_program WORK COUNT``: prints "ready", then one line a command, then ends. Run as an ordinary user.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter

from openai4s_provisioner.command_app import CommandApp, command_app
from openai4s_provisioner.jupyter.command_request import Command, batch_request
from openai4s_provisioner.jupyter.settings import OpenAI4S
from openai4s_provisioner.orchestration.store.batches import Listed
from openai4s_provisioner.parts import load_site_config

_AT_ONCE = 25


def _words(entry: Listed) -> tuple[object, ...]:
    workload, allocation = entry.now.workload, entry.now.allocation
    return workload.phase, workload.reason or "", workload.reason_detail, allocation.backend_detail


async def main(count: int) -> None:
    settings = OpenAI4S().frozen()
    config = load_site_config(settings)
    turnstile = asyncio.Semaphore(_AT_ONCE)
    phases: Counter[str] = Counter()

    async def one(app: CommandApp, number: int) -> None:
        async with turnstile:
            command = Command(("sh", "-c", f"echo {number} >>ran"))
            identity = await app.batches.submit(batch_request(command, "", {}, settings, config))
            entry = await app.batches.wait(identity)
            phases[str(entry.now.workload.phase)] += 1
            print(number, *_words(entry), flush=True)

    first = batch_request(Command(("true",)), "", {}, settings, config)
    async with command_app(settings, first) as app, asyncio.TaskGroup() as group:
        print("ready", flush=True)
        for number in range(count):
            group.create_task(one(app, number))
    print("phases", dict(phases), flush=True)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    asyncio.run(main(int(sys.argv[2])))
