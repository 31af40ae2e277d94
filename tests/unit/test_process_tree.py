"""Which processes an interrupt reaches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai4s_provisioner.worker.process_tree import (
    Process,
    read_all,
    read_process,
    signal_tree,
    with_descendants_in_group,
)

WaitUntil = Callable[..., Any]


def table(*rows: tuple[int, int, int]) -> dict[int, Process]:
    return {pid: Process(pid, parent, group, 0) for pid, parent, group in rows}


def test_descendants_of_the_same_group_are_found_and_ancestors_and_siblings_are_not() -> None:
    processes = table((10, 1, 10), (11, 10, 10), (12, 11, 10), (13, 12, 10), (14, 10, 10))
    assert [process.pid for process in with_descendants_in_group(11, processes)] == [11, 12, 13]


def test_a_descendant_with_a_group_of_its_own_is_passed_over_but_not_its_children() -> None:
    processes = table((10, 1, 10), (11, 10, 11), (12, 11, 10))
    assert [process.pid for process in with_descendants_in_group(10, processes)] == [10, 12]


def test_a_process_that_is_gone_has_no_tree() -> None:
    assert with_descendants_in_group(99, table((10, 1, 10))) == []
    assert signal_tree(2**22 + 1, signal.SIGINT) == []


def test_a_command_name_with_spaces_and_parentheses_is_read(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", "3", "5", *["0"] * 16, "4242", "0"]
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) c) {' '.join(fields)}\n")
    assert read_process(7, str(tmp_path)) == Process(7, 3, 5, 4242)


def test_this_process_is_found_under_its_parent() -> None:
    me = read_all()[os.getpid()]
    assert (me.parent, me.group) == (os.getppid(), os.getpgrp())


def test_an_interrupt_reaches_what_a_shell_of_the_kernel_runs_and_spares_the_wrapper(wait_until: WaitUntil) -> None:
    kernel = "import os; os.system('sleep 1000'); print('interrupted', flush=True); os.system('sleep 1000')"
    wrapper = subprocess.Popen(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "{kernel}"; :'], stdout=subprocess.PIPE, start_new_session=True
    )
    try:

        def sleeping() -> list[Process]:
            tree = with_descendants_in_group(wrapper.pid, read_all())
            return tree if len(tree) >= 3 and _name(tree[-1].pid) == "sleep" else []

        kernel_pid = wait_until(sleeping, "the kernel's shell runs its sleep")[1].pid
        signalled = signal_tree(kernel_pid, signal.SIGINT)
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == b"interrupted\n"
        assert kernel_pid in signalled
        assert wrapper.pid not in signalled
        assert wrapper.poll() is None
    finally:
        os.killpg(wrapper.pid, signal.SIGKILL)
        wrapper.communicate()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
