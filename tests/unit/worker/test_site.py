"""What a backend tells its workers of their machines: other places for the same folders, and the site's variables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai4s_provisioner.worker.site import PATH_MAP, SITE_ENVIRONMENT, Site


def site(*pairs: tuple[str, str], changes: list[Any] | None = None) -> Site:
    return Site.from_environ({PATH_MAP: json.dumps(pairs), SITE_ENVIRONMENT: json.dumps(changes or [])})


@pytest.mark.parametrize(
    ("path", "here"),
    [
        ("/home/ann/x", "/cluster/home/ann/x"),
        ("/home", "/cluster/home"),
        ("/homes/x", "/homes/x"),
        ("/home/shared/x", "/data/x"),
        ("relative/home", "relative/home"),
        ("", ""),
    ],
)
def test_the_longest_folder_counts(path: str, here: str) -> None:
    assert site(("/home", "/cluster/home"), ("/home/shared", "/data")).path(path) == here


def test_an_attempt_s_paths_are_this_machine_s_and_masks_hold_at_both() -> None:
    value = {
        "rank": 0,
        "sandbox": {
            "workspace": "/home/ann/w",
            "masked": ["/home/ann/.ssh"],
            "overlays": [["/home/ann/s/.local", "/home/ann/.local"]],
            "network": "shared",
        },
        "workspace": {"path": "/home/ann/w", "nonce_name": ".n"},
    }
    here = site(("/home", "/c")).attempt(value)
    assert here["workspace"] == {"path": "/c/ann/w", "nonce_name": ".n"}
    assert here["sandbox"] == {
        "workspace": "/c/ann/w",
        "masked": ["/c/ann/.ssh", "/home/ann/.ssh"],
        "overlays": [["/c/ann/s/.local", "/c/ann/.local"]],
        "network": "shared",
    }
    assert Site().attempt(value) is value


def test_a_launch_is_started_with_this_machine_s_paths() -> None:
    launch = {
        "argv": ["/home/ann/venv/bin/python", "-m", "x", "--config=/home/ann/c", "a=/home/ann/stays"],
        "cwd": "/home/ann/w",
        "env": {"PATH": "/home/ann/venv/bin:/usr/bin", "TOKEN": "a/home/b"},
        "launch_id": "1",
    }
    assert site(("/home", "/c")).launch(launch) == {
        "argv": ["/c/ann/venv/bin/python", "-m", "x", "--config=/c/ann/c", "a=/home/ann/stays"],
        "cwd": "/c/ann/w",
        "env": {"PATH": "/c/ann/venv/bin:/usr/bin", "TOKEN": "a/home/b"},
        "launch_id": "1",
    }


@pytest.mark.parametrize(
    ("value", "before", "after", "here"),
    [
        ("/venv/bin:/usr/bin", "/usr/bin:/bin", "/opt/cuda/bin:/usr/bin:/bin", "/opt/cuda/bin:/venv/bin:/usr/bin"),
        ("/venv/bin", "/usr/bin", "/usr/bin:/opt/bin", "/venv/bin:/opt/bin"),
        ("/venv/bin", "/usr/bin", "/only/bin", "/only/bin"),
        (None, None, "27000@host", "27000@host"),
        ("mine", None, "the site's", "the site's"),
        (None, "/usr/bin", "/opt/bin:/usr/bin", "/opt/bin:/usr/bin"),
    ],
)
def test_what_the_site_changed_reaches_the_kernel(value: str | None, before: str | None, after: str, here: str) -> None:
    launch = {"argv": ["x"], "cwd": "/", "env": {} if value is None else {"NAME": value}}
    assert site(changes=[["NAME", before, after]]).launch(launch)["env"] == {"NAME": here}


def test_nothing_said_changes_nothing() -> None:
    launch = {"argv": ["x"], "cwd": "/", "env": {"A": "b"}}
    assert Site.from_environ({}).launch(launch) == launch
