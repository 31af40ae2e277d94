"""REST: tasks, which run beside a kernel in the allocation that its session holds. Described in rest-api.yml."""

from __future__ import annotations

import shlex
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..orchestration.models import Task
from .rest_base import SessionsHandler, invalid
from .session_json import moment

_MOST_WORDS = 4096


class SessionTasks(SessionsHandler):
    @web.authenticated
    @authorized
    async def get(self, workload_id: str) -> None:
        found = await self.ask(lambda desk: desk.tasks(workload_id))
        self.answer({"tasks": [task_json(each) for each in found]})

    @web.authenticated
    @authorized
    async def post(self, workload_id: str) -> None:
        argv = self.json_object("argv").get("argv")
        if not isinstance(argv, list) or not 1 <= len(argv) <= _MOST_WORDS:
            raise invalid("argv is missing, or is not a list of words. Send the command as a list of strings.")
        if not all(isinstance(word, str) for word in argv):
            raise invalid("argv holds something that is not text. Send the command as a list of strings.")
        self.answer(task_json(await self.ask(lambda desk: desk.open_task(workload_id, argv, self.actor))), 201)


class CancelTask(SessionsHandler):
    @web.authenticated
    @authorized
    async def post(self, task_id: str) -> None:
        self.json_object()
        self.answer(task_json(await self.ask(lambda desk: desk.cancel_task(task_id, self.actor))), 202)


def task_json(task: Task) -> dict[str, Any]:
    """The schema `Task`."""
    state = "ended" if task.ended_at else "ending" if task.cancel_asked_at else "running" if task.started_at else "new"
    return {
        "task_id": task.task_id,
        "workload_id": task.workload_id,
        "command": shlex.join(task.argv),
        "state": state,
        "created_at": moment(task.created_at),
        "started_at": moment(task.started_at),
        "ended_at": moment(task.ended_at),
        "exit_code": task.exit_code,
        "signal": task.signal,
        "detail": task.detail,
    }
