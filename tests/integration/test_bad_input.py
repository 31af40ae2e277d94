"""Bad input gets one sentence that names file, key and value and says what to do; and nothing is half started.

Every case goes the way a person goes: a kernel manager is asked to start the kernel.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from openai4s_provisioner.orchestration.errors import ConfigError, ProvisionerError, Refused, StateError

from .conftest import processes_below


@pytest.fixture(autouse=True)
def stopped(control_planes: None) -> None:
    """What a test started is stopped."""


def _sentence_of(kernel: str, kind: type[ProvisionerError], *, cwd: Path, config: dict[str, Any] | None = None) -> str:
    manager = KernelManager(kernel_name=kernel, config=Config({"OpenAI4S": config or {}}))
    with pytest.raises(kind) as caught:
        manager.start_kernel(cwd=str(cwd))
    manager.context.destroy(linger=0)
    return str(caught.value)


def _site(place: Any, text: str) -> dict[str, Any]:
    path = place.root / "cluster.toml"
    path.write_text(text)
    return {"cluster_toml": str(path)}


def _edit_kernelspec(kernel: str, edit: Any) -> Path:
    path = Path(KernelSpecManager().find_kernel_specs()[kernel]) / "kernel.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


def test_an_unknown_profile(place: Any, work: Path, session_kernel: str) -> None:
    _edit_kernelspec(session_kernel, lambda c: c["metadata"]["kernel_provisioner"]["config"].update(profile="gpuu"))
    before = place.everything()
    sentence = _sentence_of(session_kernel, Refused, cwd=work)
    assert "'gpuu'" in sentence
    assert "default" in sentence, "it says which there are"
    assert place.everything() == before


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[profiles.default]\nbackend = \n", "line 2"),
        ('[profiles.default]\nbackend = "local"\ncpus = "two"\n', "cpus"),
        ('[profiles.default]\nbackend = "local"\n[profiles.default.leases]\nidle_ttl_s = 0\n', "idle_ttl_s"),
        ('[limits]\nmax_sesions = 3\n[profiles.default]\nbackend = "local"\n', "max_sesions"),
    ],
    ids=["not TOML", "a wrong type", "a lease of zero", "an unknown key"],
)
def test_a_malformed_cluster_toml(place: Any, work: Path, session_kernel: str, text: str, named: str) -> None:
    config = _site(place, text)
    before = place.everything()
    sentence = _sentence_of(session_kernel, ConfigError, cwd=work, config=config)
    assert "cluster.toml" in sentence
    assert "line" in sentence
    assert named in sentence
    assert place.everything() == before


def test_a_key_that_the_backend_does_not_know(place: Any, work: Path, session_kernel: str) -> None:
    config = _site(place, '[profiles.default]\nbackend = "local"\n\ngpu_colour = "red"\n')
    before = place.everything()
    sentence = _sentence_of(session_kernel, Refused, cwd=work, config=config)
    assert "gpu_colour" in sentence
    assert "line 4" in sentence
    assert place.everything() == before


def test_a_backend_that_is_not_installed(place: Any, work: Path, session_kernel: str) -> None:
    config = _site(place, '[profiles.default]\nbackend = "moon"\n')
    before = place.everything()
    assert "'moon'" in _sentence_of(session_kernel, Refused, cwd=work, config=config)
    assert place.everything() == before


def test_a_notebook_folder_that_does_not_exist(place: Any, work: Path, session_kernel: str) -> None:
    before = place.everything()
    sentence = _sentence_of(session_kernel, Refused, cwd=work / "nowhere")
    assert str(work / "nowhere") in sentence
    assert place.everything() == before


def test_a_kernelspec_without_argv(place: Any, work: Path, session_kernel: str) -> None:
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / "empty"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({"argv": [], "display_name": "Empty", "language": "python"}))
    _edit_kernelspec(
        session_kernel, lambda c: c["metadata"]["kernel_provisioner"]["config"].update(base_kernel="empty")
    )
    before = place.everything()
    sentence = _sentence_of(session_kernel, Refused, cwd=work)
    assert "'empty'" in sentence
    assert "argv" in sentence
    assert place.everything() == before


def test_a_base_kernel_that_was_removed(place: Any, work: Path, session_kernel: str) -> None:
    _edit_kernelspec(session_kernel, lambda c: c["metadata"]["kernel_provisioner"]["config"].update(base_kernel="gone"))
    before = place.everything()
    assert "'gone'" in _sentence_of(session_kernel, Refused, cwd=work)
    assert place.everything() == before


def test_a_state_folder_that_cannot_be_made(place: Any, work: Path, session_kernel: str) -> None:
    (place.root / "file").write_text("in the way")
    before = place.everything()
    state_dir = place.root / "file" / "state"
    sentence = _sentence_of(session_kernel, ProvisionerError, cwd=work, config={"state_dir": str(state_dir)})
    assert str(place.root / "file") in sentence
    assert place.everything() == before
    assert not processes_below(place.root, ".pyz")


def test_a_corrupt_state(place: Any, work: Path, session_kernel: str) -> None:
    state_dir = place.home / ".local/state/openai4s"
    state_dir.mkdir(parents=True, mode=0o700)
    database = state_dir / "state.db"
    database.write_bytes(b"this is not a database" * 100)
    sentence = _sentence_of(session_kernel, StateError, cwd=work)
    assert str(database) in sentence
    assert database.read_bytes() == b"this is not a database" * 100, "it is never overwritten"
    assert not processes_below(place.root, ".pyz")


def test_a_socket_path_that_is_too_long(
    place: Any, work: Path, session_kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = place.root / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    before = place.everything()
    sentence = _sentence_of(session_kernel, Refused, cwd=work)
    assert str(long) in sentence
    assert "107" in sentence
    assert "XDG_RUNTIME_DIR" in sentence
    assert place.everything() == before
