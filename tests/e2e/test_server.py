"""A server that dies under an open page, and a stream of events that stops: a sentence at every moment, no error."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import WebSocketRoute, expect

from .notebook import SECOND, Notebook

WaitUntil = Callable[..., Any]


def test_a_server_that_is_killed_and_comes_back_says_what_became_of_the_session(
    open_lab: Notebook, picture: Callable[..., None]
) -> None:
    lab = open_lab.lab
    lab.write_notebook("server.ipynb", "default")
    open_lab.load("server.ipynb")
    open_lab.expect_ready()
    open_lab.run("x = 41")
    panel = open_lab.show_panel()
    lab.stop(signal.SIGKILL)
    expect(panel.locator('[role="alert"]')).to_contain_text("The Jupyter server does not answer", timeout=40 * SECOND)
    expect(open_lab.badge).to_contain_text("The Jupyter server does not answer. Last known: Ready")
    expect(panel.locator(".openai4s-Card").first).to_be_visible()

    open_lab.closes_connection_error()
    lab.start()
    open_lab.expect_ended("The Jupyter server that owned this session went away", 90)
    expect(panel.locator('[role="alert"]')).to_have_count(0)
    told = open_lab.toast("The Jupyter server that owned this session went away")
    expect(told).to_contain_text("Start the kernel again.")
    picture(open_lab.page, "server-gone")
    open_lab.press(told, "Start again")
    open_lab.expect_ready()
    open_lab.run("6*7")
    expect(open_lab.outputs.last).to_have_text("42", timeout=30 * SECOND)
    assert not open_lab.our_errors


def closed(stream: WebSocketRoute) -> None:
    """As a proxy does that knows no such streams: every one ends at once."""
    stream.close()


def silent(stream: WebSocketRoute) -> None:
    """As a network does that lost the connection without a word: it is open, and nothing ever comes."""


@pytest.mark.parametrize("stop", [closed, silent])
def test_a_stream_of_events_that_stops_costs_some_seconds_and_nothing_else(
    open_lab: Notebook, stop: Callable[[WebSocketRoute], None], wait_until: WaitUntil
) -> None:
    stopped: list[WebSocketRoute] = []

    def answer(stream: WebSocketRoute) -> None:
        stopped.append(stream)
        stop(stream)

    open_lab.page.route_web_socket("**/api/events/subscribe*", answer)
    open_lab.lab.write_notebook("stream.ipynb", "default")
    open_lab.load("stream.ipynb")
    open_lab.expect_ready()
    assert stopped, "this page has no stream of events"
    panel = open_lab.show_panel()
    expect(panel.locator('.openai4s-Ladder li[data-progress="met"]')).to_have_count(4)
    expect(panel.locator('[role="alert"]')).to_have_count(0)
    [session] = open_lab.lab.alive()
    open_lab.lab.ask("POST", f"openai4s/sessions/{session['workload_id']}/stop", {})
    open_lab.expect_ended("stopped at its owner's request")
    assert not open_lab.our_errors
