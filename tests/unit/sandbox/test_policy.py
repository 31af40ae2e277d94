"""What a session may see, and what is refused by name."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner.sandbox.home import prepare_real_home, prepare_session_home
from openai4s_provisioner.sandbox.interpreter import interpreter_prefixes
from openai4s_provisioner.sandbox.policy import MaskUncovered, sees_real_home, session_spec
from openai4s_provisioner.sandbox.spec import SandboxSpec


@pytest.fixture
def person(tmp_path: Path) -> Path:
    for name in ("home/project", "home/.ssh", "state", "session-home", "share"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def spec_for(person: Path, **changed: Any) -> SandboxSpec:
    given: dict[str, Any] = {
        "workspace": str(person / "home/project"),
        "home": str(person / "home"),
        "home_source": str(person / "session-home"),
        "state_paths": [str(person / "state")],
        "jupyter_paths": [str(person / "home/.jupyter")],
        "prefixes": [],
        "environment": {},
    }
    return session_spec(**{**given, **changed})


def test_a_project_folder_sees_nothing_else_of_the_home(person: Path) -> None:
    spec = spec_for(person)
    assert spec.home_source == str(person / "session-home")
    assert spec.overlays == ()
    assert not sees_real_home(spec.workspace, spec.home)


@pytest.mark.parametrize("workspace", ["home", "."])
def test_a_workspace_that_holds_the_home_gets_the_sessions_own_settings(person: Path, workspace: str) -> None:
    spec = spec_for(person, workspace=os.path.normpath(person / workspace))
    assert spec.home_source == ""
    assert (str(person / "session-home/.local"), str(person / "home/.local")) in spec.overlays
    assert str(person / "home/.bashrc") in spec.protected


@pytest.mark.parametrize("kind", ["share", "share_read_only", "prefixes", "workspace"])
@pytest.mark.parametrize("inside", ["", "/deeper"])
def test_a_path_inside_a_mask_is_refused_by_name(person: Path, kind: str, inside: str) -> None:
    (person / "state/deeper").mkdir()
    path = str(person / "state") + inside
    with pytest.raises(MaskUncovered, match="always hidden") as refused:
        spec_for(person, **{kind: path if kind == "workspace" else [path]})
    assert refused.value.path == path


def test_a_symlink_into_a_mask_is_refused(person: Path) -> None:
    (person / "share/link").symlink_to(person / "home/.ssh")
    with pytest.raises(MaskUncovered):
        spec_for(person, share=[str(person / "share/link")])


@pytest.mark.parametrize(
    "workspace", ["/", "/usr", "/etc", "/etc/ssh", "/proc/self", "/dev/shm", "/tmp", "/var", "/run"]
)
def test_the_systems_folders_are_no_workspace(person: Path, workspace: str) -> None:
    with pytest.raises(MaskUncovered, match="belongs to the system") as refused:
        spec_for(person, workspace=workspace)
    assert refused.value.path == workspace


@pytest.mark.parametrize("share", ["/", "/tmp", "/proc", "/run", "/var"])
def test_folders_where_other_sessions_keep_private_files_are_no_share(person: Path, share: str) -> None:
    with pytest.raises(MaskUncovered):
        spec_for(person, share_read_only=[share])


@pytest.mark.parametrize("link", [".bashrc", ".local", ".ssh"])
def test_a_symlink_that_a_session_could_replace_is_refused_with_the_remedy(person: Path, link: str) -> None:
    if (person / "home" / link).exists():
        (person / "home" / link).rmdir()
    (person / "home" / link).symlink_to(person / "share")
    assert spec_for(person)  # not visible, so not in the way
    with pytest.raises(MaskUncovered, match="is a symlink") as refused:
        spec_for(person, workspace=str(person / "home"))
    assert refused.value.path == str(person / "home" / link)


def test_agents_and_keys_are_masked(person: Path) -> None:
    spec = spec_for(person, environment={"SSH_AUTH_SOCK": "/tmp/ssh-1/agent"}, masked=["/run/backend"])
    expected = {str(person / "home/.ssh"), str(person / "home/.aws"), "/tmp/ssh-1/agent", "/run/backend"}
    assert expected <= set(spec.masked)


def test_what_a_login_would_read_is_put_in_place_without_changing_what_it_does(person: Path) -> None:
    home = person / "home"
    (home / ".profile").write_text("echo mine\n")
    placed = {Path(path).name for path in prepare_real_home(str(home), "/bin/bash", [str(home / ".jupyter")])}
    assert {".bash_profile", ".bashrc", ".bash_logout", ".jupyter", ".local"} <= placed
    assert ".profile" not in placed
    assert (home / ".profile").read_text() == "echo mine\n"
    assert (home / ".bash_profile").read_text().endswith(". ~/.profile\n")
    assert stat.S_IMODE((home / ".jupyter").stat().st_mode) == 0o700
    assert prepare_real_home(str(home), "/bin/bash", [str(home / ".jupyter")]) == []


def test_no_credential_is_made_that_the_person_does_not_have(person: Path) -> None:
    (person / "home/.ssh").rmdir()
    spec = spec_for(person, workspace=str(person / "home"))
    prepare_real_home(str(person / "home"), "/bin/bash", spec.masked)
    made = {path.name for path in (person / "home").iterdir()}
    assert {".ssh", ".jupyter", ".local"} <= made
    assert not made & {".netrc", ".pgpass", ".aws", ".git-credentials"}


@pytest.mark.parametrize(
    ("existing", "shell"), [(".bash_login", "bash"), (".profile", "bash"), (".profile", "sh"), (None, "bash")]
)
def test_a_login_shell_reads_after_it_what_it_read_before(person: Path, existing: str | None, shell: str) -> None:
    import subprocess

    home = person / "home"
    if existing:
        (home / existing).write_text("echo was read\n")
    prepare_real_home(str(home), f"/bin/{shell}")
    done = subprocess.run(
        [f"/bin/{shell}", "-lc", "true"],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "was read" in done.stdout if existing else "was read" not in done.stdout
    assert "No such file" not in done.stderr


def test_a_file_that_a_start_up_file_goes_on_to_read_is_put_in_place(person: Path) -> None:
    (person / "home/.bashrc").write_text("[ -f ~/.bash_aliases ] && . ~/.bash_aliases\n")
    placed = {Path(path).name for path in prepare_real_home(str(person / "home"), "/bin/bash")}
    assert ".bash_aliases" in placed
    assert ".kshrc" not in placed


def test_the_session_home_has_what_is_to_be_read_only(tmp_path: Path) -> None:
    prepare_session_home(str(tmp_path / "made"))
    prepare_session_home(str(tmp_path / "made"))
    assert (tmp_path / "made/.ipython/profile_default/startup").is_dir()
    assert (tmp_path / "made/.bashrc").read_text() == ""
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_a_virtual_environment_leads_to_the_python_it_was_made_from(tmp_path: Path) -> None:
    for folder in ("base/bin", "base/lib/python3.11", "middle/bin", "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "base/bin/python3.11").touch()
    (tmp_path / "middle/bin/python3").symlink_to("../../base/bin/python3.11")
    (tmp_path / "venv/bin/python").symlink_to(tmp_path / "middle/bin/python3")
    (tmp_path / "venv/pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\n")
    found = interpreter_prefixes(str(tmp_path / "venv/bin/python"))
    assert {str(tmp_path / "venv"), str(tmp_path / "base"), str(tmp_path / "middle/bin")} == set(found)
