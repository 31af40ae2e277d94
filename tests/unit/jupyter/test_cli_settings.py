"""The command line finds the same state as the server that Jupyter's configuration describes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from openai4s_provisioner.jupyter.cli import _parser
from openai4s_provisioner.jupyter.cli_settings import add_settings, settings_of


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Jupyter's configuration that names where state lies."""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "jupyter_server_config.py").write_text(
        "c.OpenAI4S.state_dir = '/srv/state'\nc.OpenAI4S.exchange_dir = '/srv/exchange'\nc.ServerApp.port = 1\n"
    )
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(folder))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "none"))
    return folder


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return parser.parse_args(words)


def test_what_is_configured_for_the_server_counts_for_the_command_line(configured: Path) -> None:
    settings = settings_of(parsed())
    assert (settings.state_dir, settings.exchange_dir) == (Path("/srv/state"), Path("/srv/exchange"))


def test_an_option_counts_more_than_the_configuration(configured: Path) -> None:
    settings = settings_of(parsed("--state-dir", "/elsewhere"))
    assert (settings.state_dir, settings.exchange_dir) == (Path("/elsewhere"), Path("/srv/exchange"))


@pytest.mark.parametrize("command", ["keep x", "run x", "submit", "ls", "show x", "stop x", "wait x", "logs x"])
def test_every_command_that_reads_state_can_be_told_where_it_lies(command: str) -> None:
    arguments = _parser().parse_args([*command.split(), "--state-dir", "/s", "--cluster-toml", "/c"])
    assert (arguments.state_dir, arguments.cluster_toml) == ("/s", "/c")


def test_what_a_backend_logs_is_not_said_beside_the_one_sentence() -> None:
    program = (
        "import logging\n"
        "from openai4s_provisioner.jupyter.cli_settings import run_here\n"
        "async def work():\n"
        "    logging.getLogger('a_backend').warning('refused')\n"
        "    return 3\n"
        "raise SystemExit(run_here(work()))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")
