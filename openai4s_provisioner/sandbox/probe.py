"""The proof that a sandbox isolates: the same attacks from outside, where all must bite, and inside, where none may.

A probe whose attacks bite nowhere proves nothing, so a failing attack from outside is as fatal as a succeeding one from
inside. It says nothing about kernels or workers; it needs a spec, a sandbox, and a decoy to attack.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .attacks import Target
from .decoy import Decoy
from .errors import SandboxError, SandboxUnavailable
from .host import Host, is_within, rebase
from .interpreter import interpreter_prefixes
from .remedies import remedy
from .seam import PROGRAM_INSIDE, Sandbox
from .spec import NETWORK_PRIVATE, SandboxSpec

_ATTACKS_S = 30


@dataclass(frozen=True)
class ProbeResult:
    """`attacks`: name -> (it bites when unconfined, it is stopped when confined)."""

    verified: bool
    sentence: str = ""  # when not verified: what is wrong and the remedy
    attacks: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)


class ProvingGround:
    """A decoy, and what the attacks from outside did to it; any number of sandboxes may then be tried on it."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        python: str,
        program: str,
        folder: str,
        runtime: str = "",
        extra: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        """`program`: the zipapp that knows ``decoy`` and ``attack``. `folder`: where files of ours lie, to be attacked
        there; `runtime`: the same for sockets and private temp. `extra`: a backend's attacks, (name, argv)."""
        self._command = [python, "-I", "-S", program]
        self._decoy = Decoy([*self._command, "decoy"], folder, runtime or tempfile.gettempdir())
        self._spec = spec
        self._extra = tuple((name, tuple(argv)) for name, argv in extra)

    def target(self) -> Target:
        """Waits for the decoy. Raises SandboxUnavailable with the remedy."""
        try:
            return _for_spec(self._decoy.target(), self._spec, self._extra)
        except SandboxUnavailable as error:
            raise SandboxUnavailable(remedy(str(error))) from error

    def attack_from_outside(self, target: Target) -> dict[str, bool]:
        """Which attacks bite, tried by a process of its own. Raises SandboxUnavailable."""
        return attack([*self._command, "attack"], target)

    def close(self) -> None:
        self._decoy.close()


def prove(
    sandbox: Sandbox,
    spec: SandboxSpec,
    *,
    python: str,
    program: str,
    folder: str,
    extra: Sequence[tuple[str, Sequence[str]]] = (),
) -> ProbeResult:
    """Attack a decoy from outside and from inside this very sandbox. Blocks for half a second; never raises for what it
    finds. `folder`: an existing folder of ours, where a session's credential would lie."""
    runtime = tempfile.mkdtemp(prefix="o4s-probe-")
    places = [os.path.join(runtime, name) for name in ("shared", "tmp")]
    for place in places:
        os.mkdir(place, 0o700)
    full = replace(
        spec.with_launch(shared=places[0], private_tmp=places[1], program=program),
        read_only=(*spec.read_only, *interpreter_prefixes(python)),
    )
    ground = ProvingGround(full, python=python, program=program, folder=folder, runtime=runtime, extra=extra)
    try:
        target = ground.target()  # first: what comes to exist afterwards is hidden, but no part of the proof
        inside = sandbox.wrap(full, [python, "-I", "-S", PROGRAM_INSIDE, "attack"])
        return judge(ground.attack_from_outside(target), attack(inside, target))
    except SandboxError as error:
        return ProbeResult(False, str(error))
    finally:
        ground.close()
        shutil.rmtree(runtime, ignore_errors=True)


def attack(command: Sequence[str], target: Target) -> dict[str, bool]:
    """Run the attacker `command`; which attacks reached the target. Raises SandboxUnavailable when it cannot run."""
    try:
        done = subprocess.run(
            command,
            input=json.dumps(target.to_json()).encode(),
            capture_output=True,
            env={"PATH": "/usr/bin:/bin"},
            timeout=_ATTACKS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:  # its text holds the command, which is no word of the sandbox's
        raise SandboxUnavailable(
            f"the probe of the sandbox did not end within {_ATTACKS_S:g} s: try again when this machine has less to do"
        ) from None
    except OSError as error:
        raise SandboxUnavailable(remedy(str(error))) from error
    if done.returncode != 0:
        raise SandboxUnavailable(remedy(done.stderr.decode(errors="replace").strip().rpartition("\n")[2]))
    return dict(json.loads(done.stdout))


def judge(bites: Mapping[str, bool], reached: Mapping[str, bool]) -> ProbeResult:
    """The verdict on attacks tried from outside (`bites`) and inside (`reached`)."""
    attacks = {name: (bite, reached.get(name) is False) for name, bite in bites.items()}
    blunt = [name for name, (bite, _) in attacks.items() if not bite]
    open_doors = [name for name, (_, stopped) in attacks.items() if not stopped]
    if open_doors:
        sentence = f"the sandbox does not stop these attacks: {_words(open_doors)}; report this to your administrator"
        return ProbeResult(False, sentence, attacks)
    if blunt or not attacks:
        return ProbeResult(
            False,
            f"isolation cannot be proven here, because these attacks fail even without a sandbox: {_words(blunt)}; "
            "ask your administrator which security module forbids them",
            attacks,
        )
    return ProbeResult(True, "", attacks)


def _words(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def _for_spec(target: Target, spec: SandboxSpec, extra: tuple[tuple[str, tuple[str, ...]], ...]) -> Target:
    """The target, with what this spec in particular must hide and protect, as far as it exists and can be reached."""
    host = Host()
    allowed = [spec.workspace, spec.home, *spec.read_only, *spec.read_write, *spec.resources]
    protected = [path for path in spec.protected if host.kind(path)]
    inside = [
        rebase(path, spec.home_source, spec.home) for path in protected if is_within(path, spec.home_source or "/-")
    ]
    return replace(
        target,
        abstract_socket=target.abstract_socket if spec.network == NETWORK_PRIVATE else "",
        login_files=(*protected, *inside),
        masked=tuple(path for path in spec.masked if host.kind(path)),
        allowed=tuple(allowed) + tuple(place for _, place in spec.overlays),
        extra=extra,
    )


def as_report(result: ProbeResult) -> dict[str, str]:
    """Attack name -> "stopped" or "reached", as it is reported to the server."""
    return {name: "stopped" if stopped else "reached" for name, (_, stopped) in result.attacks.items()}
