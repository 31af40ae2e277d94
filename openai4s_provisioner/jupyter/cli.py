"""``jupyter openai4s``: what a person or an admin does outside of JupyterLab.

Every command prints plain lines and ends with an honest exit status: 0 done, 1 refused with one sentence, 2 misused.
`wait` and `run` end as the command did (128 + N after signal N); 130 after an interrupt, 141 when nobody reads on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from jupyter_client.kernelspec import KernelSpecManager

from ..app import load_site_config
from ..orchestration.errors import ConfigError, ProvisionerError
from ..orchestration.models import KernelTransport, ResourceProfile
from . import cli_batch, cli_extend, cli_keep, cli_run, cli_site, cli_status, kernelspecs
from .cli_settings import add_settings, settings_of


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script ``jupyter-openai4s``."""
    words, command = _split(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words)
    if command is not None and not hasattr(arguments, "command"):
        _parser().error("this command runs nothing: leave out what follows --")
    arguments.command = command
    try:
        status: int = arguments.run(arguments)
    except (ProvisionerError, OSError) as error:
        print(f"jupyter openai4s: {error}", file=sys.stderr)
        return 1
    return status


def _split(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Ours, and the command behind the first ``--``; None when there is no ``--``."""
    if "--" not in argv:
        return list(argv), None
    here = list(argv).index("--")
    return list(argv[:here]), list(argv[here + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jupyter openai4s", description="Sessions: kernels in isolated allocations.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    kernels = commands.add_parser("kernels", help="kernelspecs of sessions").add_subparsers(
        required=True, metavar="ACTION"
    )

    install = kernels.add_parser("install", help="one kernelspec per base kernel and profile")
    install.add_argument("--kernel", action="append", default=[], help="base kernelspec (repeatable; default: python3)")
    install.add_argument("--profile", action="append", default=[], help="profile (repeatable; default: all of them)")
    add_settings(install)
    install.add_argument(
        "--transport",
        choices=[each.value for each in KernelTransport],
        help="how the kernel can be reached: tcp for one that cannot do ipc; it then has no network to the outside",
    )
    where = install.add_mutually_exclusive_group()
    where.add_argument("--sys-prefix", action="store_true", help="into this Python environment")
    where.add_argument("--prefix", help="into this prefix")
    install.set_defaults(run=_install)

    listing = kernels.add_parser("list", help="the session kernelspecs that Jupyter finds")
    listing.set_defaults(run=_list)

    remove = kernels.add_parser("remove", help="remove session kernelspecs by name")
    remove.add_argument("name", nargs="+")
    remove.set_defaults(run=_remove)
    cli_keep.add_commands(commands)
    cli_extend.add_commands(commands)
    cli_batch.add_commands(commands)
    cli_run.add_commands(commands)
    cli_status.add_commands(commands)
    cli_site.add_commands(commands)
    return parser


def _install(arguments: argparse.Namespace) -> int:
    profiles = _chosen_profiles(load_site_config(settings_of(arguments)).profiles, arguments.profile)
    prefix = sys.prefix if arguments.sys_prefix else arguments.prefix
    transport = KernelTransport(arguments.transport) if arguments.transport else None
    manager = KernelSpecManager()
    for base in arguments.kernel or ["python3"]:
        for profile in profiles:
            spec = kernelspecs.install(manager, base, profile, user=prefix is None, prefix=prefix, transport=transport)
            print(f"{spec.name}\t{spec.display_name}\t{spec.resource_dir}")
    return 0


def _chosen_profiles(known: Mapping[str, ResourceProfile], names: Sequence[str]) -> list[ResourceProfile]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"No profile named {unknown[0]!r}. Profiles: {', '.join(sorted(known))}.")
    return [known[name] for name in names or sorted(known)]


def _list(arguments: argparse.Namespace) -> int:
    for spec in kernelspecs.installed(KernelSpecManager()):
        print(f"{spec.name}\t{spec.display_name}\tstarts {spec.base} with profile {spec.profile}\t{spec.resource_dir}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    manager = KernelSpecManager()
    for name in arguments.name:
        print(f"removed {kernelspecs.remove(manager, name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
