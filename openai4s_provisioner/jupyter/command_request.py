"""What a person types at ``jupyter openai4s submit``, turned into a request that admission can judge.

Reads the environment and the kernelspecs of the caller; refuses in one sentence; writes nothing.
"""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel

from ..app_values import AppSettings
from ..orchestration.admission import AdmissionRequest
from ..orchestration.config import SiteConfig
from ..orchestration.errors import Refused
from ..orchestration.models import BatchSpec, KernelLaunch, WorkspacePolicy
from ..orchestration.reasons import Reason
from .environment import installation_folders, session_environment

RUNNER = Path(__file__).with_name("run_notebook.py")


@dataclass(frozen=True)
class Command:
    """A command line, and what it needs to see beside the workspace."""

    argv: tuple[str, ...]
    installation: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    notebook_path: str = ""


def batch_request(
    command: Command, profile: str, env: Mapping[str, str], settings: AppSettings, config: SiteConfig
) -> AdmissionRequest:
    """A BATCH in the folder one stands in. `env`: variables named on purpose, which are passed whatever their name."""
    cwd = os.getcwd()
    known = config.profiles.get(profile or config.default_profile)
    if known is not None and known.workspace is WorkspacePolicy.PRIVATE:
        cwd = str(settings.workspaces_dir / uuid.uuid4().hex)
    environment = {**session_environment(os.environ, ()), **env}
    launch = KernelLaunch(launch_id="command", argv=command.argv, env=environment, cwd=cwd, key="")
    folders = installation_folders(command.argv, Path.home(), environment.get("PATH")) if command.argv else []
    spec = BatchSpec(
        workspace=cwd,
        cwd=cwd,
        argv=command.argv,
        notebook_path=command.notebook_path,
        installation=tuple(dict.fromkeys([*folders, *command.installation])),
        resources=command.resources,
    )
    return AdmissionRequest(getpass.getuser(), profile, spec, launch)


def notebook_command(source: str, target: str, kernel: str) -> Command:
    """The command that runs the notebook `source` and writes what came of it to `target`. Raises Refused."""
    if not source.endswith(".ipynb"):
        raise _invalid(f"{source!r} is not a notebook (.ipynb). To run a command, put it behind --.")
    if importlib.util.find_spec("nbclient") is None:
        raise _invalid("Notebooks are run by nbclient, which is not installed beside this command. Install it there.")
    here = Path.cwd()
    for path in (source, target):
        if not (here / path).resolve().is_relative_to(here.resolve()):
            raise _invalid(f"The notebook {path!r} lies outside of {here}, which is all the command would see.")
    if not (here / target).parent.is_dir():
        raise _invalid(f"There is no folder {str((here / target).parent)!r} to write the result into. Create it.")
    name = kernel or _kernel_of(here / source)
    found, spec = _kernelspec(name)
    argv = [sys.executable, str(RUNNER), source, target, "--kernel", found]
    resources = [str(RUNNER)]
    if spec.resource_dir and os.path.isdir(spec.resource_dir):
        argv += ["--kernel-dir", os.path.dirname(spec.resource_dir)]
        resources.append(spec.resource_dir)
    installation = installation_folders(spec.argv, Path.home(), os.environ.get("PATH"))
    return Command(tuple(argv), tuple(installation), tuple(resources), source)


def chosen_variables(words: Sequence[str]) -> dict[str, str]:
    """``NAME=value``, or ``NAME`` for the caller's own value. Raises Refused."""
    chosen: dict[str, str] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not name or (not given and name not in os.environ):
            raise _invalid(f"--env {word!r} names no variable of your environment. Set it, or write NAME=value.")
        chosen[name] = value if given else os.environ[name]
    return chosen


def _kernel_of(notebook: Path) -> str:
    try:
        content = json.loads(notebook.read_text(encoding="utf-8"))
        return str(content["metadata"].get("kernelspec", {}).get("name", "python3"))
    except OSError as error:
        raise _invalid(f"The notebook {str(notebook)!r} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _invalid(f"{str(notebook)!r} is not a notebook: it is not the JSON that one consists of.") from None


def _kernelspec(name: str) -> tuple[str, KernelSpec]:
    """The kernel itself: of a session's kernelspec, the one that it starts."""
    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
        base = spec.metadata.get("openai4s", {}).get("base_kernel")
        return (base, manager.get_kernel_spec(base)) if base else (name, spec)
    except NoSuchKernel:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise _invalid(
            f"There is no kernel {name!r} to run the notebook with. Installed: {known}. Use --kernel."
        ) from None


def _invalid(sentence: str) -> Refused:
    return Refused(Reason.INVALID_SPEC, sentence)
