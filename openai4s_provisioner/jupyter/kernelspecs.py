"""Kernelspecs of sessions: one per base kernel and profile, with a name that a person recognises.

A session's kernelspec is a copy of its base with a provisioner stanza. Only kernelspecs that carry our own mark are
ever listed, replaced or removed here; everybody else's are left alone.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel

from ..orchestration.errors import ConfigError
from ..orchestration.models import KernelTransport, ResourceProfile

PROVISIONER = "openai4s-provisioner"
MARK = "openai4s"  # in a kernelspec's metadata; a session's names its base kernel there, a base may say "transport"


@dataclass(frozen=True)
class SessionKernelspec:
    """An installed kernelspec of ours. `base` is the kernelspec it starts, `profile` the profile it asks for."""

    name: str
    display_name: str
    base: str
    profile: str
    resource_dir: Path


def profile_of(metadata: Mapping[str, Any]) -> str | None:
    """The profile that a kernelspec of sessions asks for ("" = the site's default); None for any other kernelspec."""
    stanza = metadata.get("kernel_provisioner")
    if not isinstance(stanza, dict) or stanza.get("provisioner_name") != PROVISIONER:
        return None
    config = stanza.get("config")
    return str(config.get("profile", "")) if isinstance(config, dict) else ""


def kernelspec_name(base: str, profile: str) -> str:
    return re.sub(r"[^a-z0-9._-]", "-", f"{base}-{profile}-session".lower())


def display_name(base: KernelSpec, profile: ResourceProfile) -> str:
    """``Python 3 (ipykernel)`` and the profile ``local session`` become ``Python 3 (local session)``.

    A profile whose name has brackets of its own, such as ``GPU (cluster)``, is named in full already.
    """
    if profile.display_name.endswith(")"):
        return profile.display_name
    language = re.sub(r"\s*\([^)]*\)\s*$", "", base.display_name) or base.display_name
    return f"{language} ({profile.display_name or profile.name})"


def mark(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a kernelspec says for us; empty when it says nothing, or something that cannot be ours."""
    found = metadata.get(MARK)
    return found if isinstance(found, dict) else {}


def chosen_transport(metadata: Mapping[str, Any]) -> KernelTransport:
    """How the kernel can be reached. Raises ConfigError for a word that is none."""
    word = mark(metadata).get("transport", KernelTransport.IPC)
    try:
        return KernelTransport(word)
    except ValueError:
        known = " or ".join(f"{each.value!r}" for each in KernelTransport)
        raise ConfigError(f"metadata.{MARK}.transport must be {known}, and is {word!r}.") from None


def session_stanza(
    base: KernelSpec, base_name: str, profile: ResourceProfile, transport: KernelTransport | None = None
) -> dict[str, Any]:
    """The content of kernel.json. Without a `transport`, the one that the base kernel names."""
    chosen = chosen_transport(base.metadata) if transport is None else transport
    content: dict[str, Any] = base.to_dict()
    content["display_name"] = display_name(base, profile)
    content["metadata"] = {
        **base.metadata,
        "kernel_provisioner": {
            "provisioner_name": PROVISIONER,
            "config": {"profile": profile.name, "base_kernel": base_name},
        },
        MARK: {"base_kernel": base_name, "profile": profile.name, **_said(chosen)},
    }
    return content


def _said(transport: KernelTransport) -> dict[str, str]:
    """Only what is not usual is written down."""
    return {} if transport is KernelTransport.IPC else {"transport": transport.value}


def install(
    manager: KernelSpecManager,
    base_name: str,
    profile: ResourceProfile,
    *,
    user: bool = True,
    prefix: str | None = None,
    transport: KernelTransport | None = None,
) -> SessionKernelspec:
    """Write the session kernelspec of `base_name` and `profile`. Replaces our own older one, refuses anyone else's.

    `transport`: how the kernel can be reached, when its own kernelspec does not say so.
    """
    base = _base(manager, base_name)
    name = kernelspec_name(base_name, profile.name)
    foreign = manager.find_kernel_specs().get(name)
    if foreign and not _is_ours(Path(foreign)):
        raise ConfigError(
            f"Kernelspec {name!r} in {foreign} was not written by this command; rename or remove it first."
        )
    content = session_stanza(base, base_name, profile, transport)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / name
        if base.resource_dir and Path(base.resource_dir).is_dir():
            shutil.copytree(base.resource_dir, source)
        else:
            source.mkdir()
        (source / "kernel.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        target = manager.install_kernel_spec(str(source), kernel_name=name, user=user and not prefix, prefix=prefix)
    return SessionKernelspec(name, content["display_name"], base_name, profile.name, Path(target))


def installed(manager: KernelSpecManager) -> list[SessionKernelspec]:
    """Every kernelspec of ours that Jupyter finds, by name. One that cannot be read is somebody else's."""
    found = []
    for name, folder in sorted(manager.find_kernel_specs().items()):
        stanza = _read(Path(folder))
        ours = mark(stanza.get("metadata", {}))
        if _is_session(ours):
            found.append(
                SessionKernelspec(
                    name, stanza.get("display_name", name), ours["base_kernel"], ours["profile"], Path(folder)
                )
            )
    return found


def remove(manager: KernelSpecManager, name: str) -> Path:
    """Remove the kernelspec `name` if it is ours. Returns the folder that is gone."""
    for spec in installed(manager):
        if spec.name == name:
            shutil.rmtree(spec.resource_dir)
            return spec.resource_dir
    raise ConfigError(f"No session kernelspec named {name!r}. 'jupyter openai4s kernels list' names those there are.")


def _base(manager: KernelSpecManager, name: str) -> KernelSpec:
    try:
        base = manager.get_kernel_spec(name)
    except NoSuchKernel:
        names = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise ConfigError(f"No kernelspec named {name!r} to make a session of. Installed: {names}.") from None
    if _is_session(mark(base.metadata)):
        raise ConfigError(f"Kernelspec {name!r} is a session already; name the kernel it starts instead.")
    if not base.argv:
        raise ConfigError(f"Kernelspec {name!r} in {base.resource_dir} has no argv: add the kernel's command to it.")
    return base


def _is_ours(folder: Path) -> bool:
    return _is_session(mark(_read(folder).get("metadata", {})))


def _is_session(ours: Mapping[str, Any]) -> bool:
    return "base_kernel" in ours and "profile" in ours


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
