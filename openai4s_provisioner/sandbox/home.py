"""The folders where a person's programs look for code to run, and how a session is kept from writing into them.

Two homes are meant: the session home (ours, shared by one person's sessions) and the person's own, which a session sees
only when its workspace is, or contains, that home. A file that exists can be shown read-only; one that is missing could
be created by a session and would run at the next login, so a neutral placeholder is put there first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

# Run or read by shells, logins and common programs when they start. Relative to a home.
STARTUP_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".profile", ".bash_logout", ".bash_aliases", ".bashrc.d", ".inputrc"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".cshrc", ".tcshrc", ".login", ".logout", ".kshrc"),
    *(".pythonrc.py", ".pam_environment", ".xprofile", ".xsession", ".xinitrc", ".forward", ".procmailrc"),
    *(".rhosts", ".shosts", ".k5login", ".k5users", ".gitconfig", ".vimrc", ".vim", ".emacs", ".emacs.d", ".tmux.conf"),
    *(".screenrc", ".gdbinit", ".pdbrc", ".Rprofile", ".Renviron", ".condarc", ".julia/config", "bin"),
)

# Run by every IPython kernel that uses that home.
IPYTHON_FILES = (
    ".ipython/profile_default/startup",
    ".ipython/profile_default/ipython_config.py",
    ".ipython/profile_default/ipython_config.json",
    ".ipython/profile_default/ipython_kernel_config.py",
    ".ipython/profile_default/ipython_kernel_config.json",
)

# Replaced by the session home's own when a session sees the person's real home.
OVERLAID = (".local", ".config", ".cache", ".ipython")

CREDENTIALS = (
    *(".ssh", ".aws", ".gnupg", ".kube", ".azure", ".config/gcloud", ".docker", ".netrc", ".pgpass"),
    *(".git-credentials", ".password-store", ".config/git/credentials", ".config/gh", ".config/rclone", ".pypirc"),
    *(".config/containers", ".config/hub", ".config/sops", ".local/share/keyrings", ".mozilla", ".config/chromium"),
    *(".huggingface/token", ".cache/huggingface/token", ".config/huggingface", ".kaggle", ".s3cfg", ".boto"),
    *(".oci", ".globus", ".terraform.d/credentials.tfrc.json", ".vault-token", ".my.cnf", ".mylogin.cnf"),
)

_NOTE = "# An empty start-up file, placed here so that no notebook session can put one in its place. Yours to edit.\n"
_SESSION_FILES = (".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".Rprofile", ".Renviron", ".inputrc")

# What each login shell reads. The first of bash's three is placed so that bash still reads the one it read before.
_SHELL_FILES = {
    "bash": (".profile", ".bash_profile", ".bashrc", ".bash_logout", ".inputrc"),
    "zsh": (".zshenv", ".zprofile", ".zshrc", ".zlogin", ".zlogout"),
    "csh": (".cshrc", ".login", ".logout"),
    "tcsh": (".cshrc", ".tcshrc", ".login", ".logout"),
}
_OTHER_SHELL_FILES = (".profile",)
_SOURCED_FILES = (".bash_aliases", ".kshrc")
_SOURCED_FOLDERS = (".bashrc.d", "bin")


def prepare_session_home(home_source: str) -> None:
    """Make the persistent home of a person's sessions, with everything in it that is to be read-only inside."""
    os.makedirs(home_source, mode=0o700, exist_ok=True)
    for folder in (*OVERLAID, ".ipython/profile_default/startup", ".julia/config"):
        os.makedirs(os.path.join(home_source, folder), mode=0o700, exist_ok=True)
    files = (*_SESSION_FILES, *(name for name in IPYTHON_FILES if name.endswith(".py")))
    for name in files:
        _place(os.path.join(home_source, name), "")
    for name in (name for name in IPYTHON_FILES if name.endswith(".json")):
        _place(os.path.join(home_source, name), "{}\n")


def prepare_real_home(home: str, login_shell: str, masked: Iterable[str] = ()) -> list[str]:
    """Fill the gaps through which a session that sees the real `home` could plant code; returns what was placed.

    `masked`: what is to be hidden; a missing folder inside the home is made, because only what exists can be hidden,
    and what is missing could be created (an `authorized_keys`, a Jupyter configuration). Credentials that a person does
    not have are left out, since nothing runs them.
    """
    placed = [path for path, text in _missing_files(home, login_shell) if _place(path, text)]
    folders = [os.path.join(home, name) for name in (".ssh", *OVERLAID)]
    folders += [path for path in masked if not _needs_no_folder(home, path)]
    folders += [os.path.join(home, name) for name in _SOURCED_FOLDERS if _is_mentioned(home, name)]
    for folder in folders:
        if folder.startswith(home + "/") and not os.path.lexists(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            placed.append(folder)
    return placed


def _needs_no_folder(home: str, path: str) -> bool:
    """A credential's file, or what lies in a folder that a session sees a version of its own of."""
    name = os.path.relpath(path, home)
    return name in CREDENTIALS or name.split("/")[0] in OVERLAID


def _missing_files(home: str, login_shell: str) -> list[tuple[str, str]]:
    names = _SHELL_FILES.get(os.path.basename(login_shell), _OTHER_SHELL_FILES)
    names += tuple(name for name in _SOURCED_FILES if _is_mentioned(home, name))
    wanted = [(os.path.join(home, name), _placeholder(home, name)) for name in names]
    return [(path, text) for path, text in wanted if not os.path.lexists(path)]


def _placeholder(home: str, name: str) -> str:
    if name == ".bash_profile":
        before = ".bash_login" if os.path.lexists(os.path.join(home, ".bash_login")) else ".profile"
        return f"{_NOTE}# Without this file bash would read ~/{before}, so it is read here.\n. ~/{before}\n"
    if name == ".tcshrc":
        return f"{_NOTE}# Without this file tcsh would read ~/.cshrc, so it is read here.\nsource ~/.cshrc\n"
    return _NOTE


def _is_mentioned(home: str, name: str) -> bool:
    """Whether one of the shell's own start-up files goes on to read `name`."""
    for file in (".bashrc", ".bash_profile", ".bash_login", ".profile", ".kshrc", ".zshrc"):
        try:
            with open(os.path.join(home, file), encoding="utf-8", errors="replace") as text:
                if name in text.read():
                    return True
        except OSError:
            continue
    return False


def _place(path: str, text: str) -> bool:
    """Create the file, never touching one that is there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True
