"""Why a sandbox does not work on this machine, and what to do about it, in one sentence for a person."""

from __future__ import annotations

# (setting, the value that switches user namespaces off, how to switch them on)
_SETTINGS = (
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
)


def remedy(said: str, proc_sys: str = "/proc/sys") -> str:
    """What `said` (the last words of the sandbox or of the probe) means for a person."""
    if "proc" in said and "mount" in said:
        return (
            "the sandbox cannot mount its own /proc, as is usual inside a container: start the container with "
            "--security-opt systempaths=unconfined, or run the sessions outside it"
        )
    if "loopback" in said or "RTM_" in said:
        return (
            f"a network of its own, which a kernel that can only do TCP needs, cannot be made here ({said}): "
            "ask your administrator to allow unprivileged network namespaces, or choose a kernel that can do ipc"
        )
    if any(word in said for word in ("namespace", "uid map", "unshare", "Operation not permitted", "No space left")):
        commands = [command for name, off, command in _SETTINGS if _setting(proc_sys, name) == off]
        elsewhere = "switch them on (user.max_user_namespaces, or the container's seccomp profile)"
        how = f"run {' and '.join(commands)}" if commands else elsewhere
        return (
            f"user namespaces, which isolate sessions from each other, are off on this machine ({said}): "
            f"ask your administrator to {how}"
        )
    return (
        f"the sandbox could not be started ({said or 'it said nothing'}): "
        "ask your administrator to make bwrap work on this machine"
    )


def _setting(proc_sys: str, name: str) -> str:
    try:
        with open(f"{proc_sys}/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
