"""Where a call of ``jupyter openai4s`` finds state and ``cluster.toml``: as the server does, unless it is told.

What is configured as ``c.OpenAI4S.<name>`` for Jupyter, or for its server, counts here too; options count more. It
reads configuration and makes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any

from traitlets.config import Config

from ..app_values import AppSettings
from .settings import OpenAI4S, configured


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options that every command has which needs state or profiles."""
    parser.add_argument("--cluster-toml", default="", help="path of cluster.toml, if not found by itself")
    parser.add_argument("--state-dir", default="", help="folder of the state, if not the configured or default one")


def settings_of(arguments: argparse.Namespace) -> AppSettings:
    options = {name: value for name in ("cluster_toml", "state_dir") if (value := getattr(arguments, name))}
    config = configured()
    config.merge(Config({"OpenAI4S": options}))
    return OpenAI4S(config=config).frozen()


def run_here(work: Coroutine[Any, Any, int]) -> int:
    """On a loop of its own. An interrupt ends this call, and nothing that it submitted."""
    if logging.lastResort is not None:  # a refusal is said once, and not by our log, nor by a backend's as well
        logging.lastResort.setLevel(logging.ERROR)
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return 141
