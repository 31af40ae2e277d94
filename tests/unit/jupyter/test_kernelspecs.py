"""Session kernelspecs by the command that people use: installed, listed, removed, and everybody else's left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from openai4s_provisioner.jupyter.cli import main
from openai4s_provisioner.jupyter.kernelspecs import display_name
from openai4s_provisioner.orchestration.models import ResourceProfile


@pytest.fixture
def kernels(place: Any) -> Path:
    """Where this user's kernelspecs lie; holds a base kernel named "own"."""
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels"
    _write(
        folder / "own",
        {"argv": ["own-kernel", "{connection_file}"], "display_name": "Own 3 (plain)", "language": "own"},
    )
    (folder / "own" / "logo-64x64.png").write_bytes(b"a picture")
    return folder


def _write(folder: Path, content: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(content))


def _site(place: Any, text: str) -> list[str]:
    path = place.root / "cluster.toml"
    path.write_text(text)
    return ["--cluster-toml", str(path)]


def test_one_kernelspec_per_base_kernel_and_profile(
    place: Any, kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = _site(place, '[profiles.small]\n[profiles.big]\ndisplay_name = "16 cores"\n')
    assert main(["kernels", "install", "--kernel", "own", *site]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:2] for line in lines] == [
        ["own-big-session", "Own 3 (16 cores)"],
        ["own-small-session", "Own 3 (small)"],
    ]
    spec = KernelSpecManager().get_kernel_spec("own-big-session")
    assert spec.argv == ["own-kernel", "{connection_file}"]
    assert spec.metadata["kernel_provisioner"] == {
        "provisioner_name": "openai4s-provisioner",
        "config": {"profile": "big", "base_kernel": "own"},
    }
    assert (kernels / "own-big-session" / "logo-64x64.png").read_bytes() == b"a picture"


def test_without_a_site_the_default_profile_has_a_name_that_people_recognise(kernels: Path) -> None:
    assert main(["kernels", "install", "--kernel", "own"]) == 0
    assert KernelSpecManager().get_kernel_spec("own-default-session").display_name == "Own 3 (local session)"


def test_installing_again_follows_the_base_kernel(kernels: Path) -> None:
    main(["kernels", "install", "--kernel", "own"])
    (kernels / "own" / "kernel.json").write_text(
        json.dumps({"argv": ["newer", "{connection_file}"], "display_name": "Own 4", "language": "own"})
    )
    assert main(["kernels", "install", "--kernel", "own"]) == 0
    spec = KernelSpecManager().get_kernel_spec("own-default-session")
    assert spec.argv == ["newer", "{connection_file}"]
    assert spec.display_name == "Own 4 (local session)"


def test_a_profile_with_brackets_in_its_name_is_named_in_full() -> None:
    base = KernelSpec(display_name="Own 3 (plain)")
    assert display_name(base, ResourceProfile("gpu", "local", display_name="GPU (cluster)")) == "GPU (cluster)"
    assert display_name(base, ResourceProfile("gpu", "local", display_name="GPU")) == "Own 3 (GPU)"


def test_only_ours_are_listed_and_removed(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["kernels", "install", "--kernel", "own"])
    capsys.readouterr()
    assert main(["kernels", "list"]) == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if str(kernels) in each)
    assert line.startswith("own-default-session\tOwn 3 (local session)\tstarts own with profile default\t")
    assert main(["kernels", "remove", "own-default-session"]) == 0
    assert not (kernels / "own-default-session").exists()
    assert main(["kernels", "remove", "own"]) == 1
    assert (kernels / "own").exists(), "a kernelspec of somebody else's is never removed"
    assert "'own'" in capsys.readouterr().err


def test_a_kernelspec_of_somebody_else_is_not_replaced(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = {"argv": ["theirs"], "display_name": "Theirs", "language": "own"}
    _write(kernels / "own-default-session", theirs)
    assert main(["kernels", "install", "--kernel", "own"]) == 1
    assert json.loads((kernels / "own-default-session" / "kernel.json").read_text()) == theirs
    assert str(kernels / "own-default-session") in capsys.readouterr().err


def test_a_kernel_that_can_only_do_tcp_is_installed_as_such(kernels: Path) -> None:
    assert main(["kernels", "install", "--kernel", "own", "--transport", "tcp"]) == 0
    assert KernelSpecManager().get_kernel_spec("own-default-session").metadata["openai4s"]["transport"] == "tcp"
    assert main(["kernels", "install", "--kernel", "own"]) == 0
    assert "transport" not in KernelSpecManager().get_kernel_spec("own-default-session").metadata["openai4s"]


def test_a_base_kernel_may_say_itself_that_it_can_only_do_tcp(
    kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stanza = {"argv": ["own-kernel"], "display_name": "Own", "language": "own"}
    _write(kernels / "jvm", {**stanza, "metadata": {"openai4s": {"transport": "tcp"}}})
    assert main(["kernels", "install", "--kernel", "jvm"]) == 0
    spec = KernelSpecManager().get_kernel_spec("jvm-default-session")
    assert spec.metadata["openai4s"] == {"base_kernel": "jvm", "profile": "default", "transport": "tcp"}
    capsys.readouterr()
    assert main(["kernels", "list"]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert "jvm" not in names, "what only says how it can be reached is no session"
    assert "jvm-default-session" in names


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kernel", "nonesuch"], "'nonesuch'"),
        (["--kernel", "own", "--profile", "nonesuch"], "'nonesuch'"),
        (["--kernel", "own-default-session"], "is a session already"),
        (["--kernel", "empty"], "argv"),
        (["--kernel", "pigeon"], "'pigeon post'"),
    ],
)
def test_what_cannot_be_installed_is_said_in_one_line(
    kernels: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    main(["kernels", "install", "--kernel", "own"])
    _write(kernels / "empty", {"argv": [], "display_name": "Empty", "language": "own"})
    words = {"openai4s": {"transport": "pigeon post"}}
    _write(kernels / "pigeon", {"argv": ["p"], "display_name": "P", "language": "own", "metadata": words})
    before = sorted(path.name for path in kernels.iterdir())
    capsys.readouterr()
    assert main(["kernels", "install", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert sorted(path.name for path in kernels.iterdir()) == before
