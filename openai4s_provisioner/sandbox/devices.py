"""Which accelerators an allocation was granted on this machine, and how programs inside must name them.

Looks at the allocation's environment and at the machine's device files. A device that this process may not open is not
granted, whatever a variable says; one that may be opened is shown only when it was named, or when nothing named any
and the profile holds accelerators. It opens devices to learn that, and does nothing else with them.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Variables that say which accelerators a program uses: the allocation's own values are the right ones inside.
VISIBILITY = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "ZE_AFFINITY_MASK",
)
NAMED_DEVICES = "OPENAI4S_DEVICES"  # paths with colons between them, from a backend that knows them

_NVIDIA_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/*")
_NETWORK = ("infiniband/*",)
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOENT)
_AMD, _INTEL = "0x1002", "0x8086"
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Grant:
    """`devices` are device files; `environment` holds the visibility variables as they are right inside."""

    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Machine:
    """The device files of this machine, and what the system says of them."""

    def __init__(self, root: str = "") -> None:
        """`root`: another place than the machine's own, for a test."""
        self.root = root

    def found(self, pattern: str) -> list[str]:
        """Device files below /dev that match, in the order of their numbers."""
        return sorted(glob.glob(f"{self.root}/dev/{pattern}"), key=_by_number)

    def may_open(self, path: str) -> bool:
        """Whether the system lets this process at the device; that no driver answers is no refusal."""
        try:
            if not stat.S_ISCHR(os.stat(path).st_mode):
                return False
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError as error:
            return error.errno not in _FORBIDDEN
        return True

    def vendor(self, render: str) -> str:
        """Of a render node; "" when the system does not say."""
        return self._line(f"/sys/class/drm/{os.path.basename(render)}/device/vendor")

    def card_of(self, render: str) -> list[str]:
        """The card that belongs to a render node, if there is one."""
        cards = glob.glob(f"{self.root}/sys/class/drm/{os.path.basename(render)}/device/drm/card*")
        return [f"{self.root}/dev/dri/{os.path.basename(card)}" for card in cards]

    def nvidia_uuids(self) -> dict[str, str]:
        """UUID to device file, as the driver tells."""
        told = {}
        for path in glob.glob(f"{self.root}/proc/driver/nvidia/gpus/*/information"):
            lines = dict(line.partition(":")[::2] for line in self._text(path).splitlines())
            facts = {name.strip(): value.strip() for name, value in lines.items()}
            if "GPU UUID" in facts and "Device Minor" in facts:
                told[facts["GPU UUID"]] = f"{self.root}/dev/nvidia{facts['Device Minor']}"
        return told

    def _line(self, path: str) -> str:
        return self._text(self.root + path).strip()

    @staticmethod
    def _text(path: str) -> str:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def granted(environ: Mapping[str, str], gpus: int, machine: Machine | None = None) -> Grant:
    """What the allocation that this process runs in was granted here. `gpus`: how many its profile asks for."""
    here = machine or Machine()
    environment = {name: environ[name] for name in VISIBILITY if name in environ}
    devices = _named(environ, here)
    for pick in (_nvidia, _amd, _intel):
        found = pick(environment, gpus, here)
        devices += found.devices
        environment.update(found.environment)
    if devices or gpus:
        devices += _open(_NETWORK, here)
    return Grant(tuple(dict.fromkeys(devices)), environment)


def _named(environ: Mapping[str, str], here: Machine) -> tuple[str, ...]:
    paths = [path for path in environ.get(NAMED_DEVICES, "").split(":") if os.path.isabs(path)]
    return tuple(path for path in map(os.path.normpath, paths) if here.may_open(path))


def _nvidia(environment: Mapping[str, str], gpus: int, here: Machine) -> Grant:
    cards = [path for path in here.found("nvidia[0-9]*") if _NUMBER.fullmatch(path.rpartition("nvidia")[2])]
    chosen = _choose("CUDA_VISIBLE_DEVICES", environment, gpus, cards, here, here.nvidia_uuids())
    if not chosen.devices:
        return chosen
    return Grant((*chosen.devices, *_open(_NVIDIA_SHARED, here)), chosen.environment)


def _amd(environment: Mapping[str, str], gpus: int, here: Machine) -> Grant:
    renders = _renders(here, _AMD) if here.found("kfd") else []
    name = next((each for each in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if each in environment), "")
    chosen = _choose(name or "ROCR_VISIBLE_DEVICES", environment, gpus, renders, here)
    if not chosen.devices:
        return chosen
    return Grant((*_with_cards(chosen.devices, here), *_open(("kfd",), here)), chosen.environment)


def _intel(environment: Mapping[str, str], gpus: int, here: Machine) -> Grant:
    chosen = _choose("ZE_AFFINITY_MASK", environment, gpus, _renders(here, _INTEL), here)
    return Grant(_with_cards(chosen.devices, here), chosen.environment)


def _renders(here: Machine, vendor: str) -> list[str]:
    return [path for path in here.found("dri/renderD*") if here.vendor(path) == vendor]


def _with_cards(renders: Iterable[str], here: Machine) -> tuple[str, ...]:
    cards = [card for render in renders for card in here.card_of(render) if here.may_open(card)]
    return (*renders, *cards)


def _choose(
    name: str,
    environment: Mapping[str, str],
    gpus: int,
    cards: list[str],
    here: Machine,
    by_uuid: Mapping[str, str] | None = None,
) -> Grant:
    """The cards that `name` names, and its value as it is right where only these can be seen.

    Numbers count the cards that can be opened: where a scheduler forbids the others, it numbers from 0, and where it
    forbids none, all are counted.
    """
    usable = [card for card in cards if here.may_open(card)]
    value = environment.get(name)
    if value is None:
        return Grant(tuple(usable)) if gpus > 0 else Grant()
    wanted = [part.strip() for part in value.split(",") if part.strip()]
    cards_of = {part: _card(part, usable, by_uuid or {}) for part in wanted}
    if any(part.startswith("MIG-") for part in wanted):  # a part of a card, and only the driver knows of which
        return Grant(tuple(usable))
    shown = sorted({card for card in cards_of.values() if card}, key=_by_number)
    told = [_renumbered(part, cards_of[part], shown) for part in wanted if cards_of[part]]
    return Grant(tuple(shown), {name: ",".join(told)}) if shown else Grant()


def _card(part: str, usable: list[str], by_uuid: Mapping[str, str]) -> str:
    """The card that one word means; "" for none. The word may also name a part of a card, "1.0"."""
    number = part.partition(".")[0]
    if not _NUMBER.fullmatch(number):
        found = next((card for uuid, card in by_uuid.items() if uuid.startswith(part)), "")
        return found if found in usable else ""
    if int(number) < len(usable):
        return usable[int(number)]
    return next((card for card in usable if _by_number(card)[1] == int(number)), "")  # numbered as the machine does


def _renumbered(part: str, card: str, shown: list[str]) -> str:
    number, dot, rest = part.partition(".")
    return f"{shown.index(card)}{dot}{rest}" if _NUMBER.fullmatch(number) else part


def _open(patterns: Iterable[str], here: Machine) -> tuple[str, ...]:
    return tuple(path for pattern in patterns for path in here.found(pattern) if here.may_open(path))


def _by_number(path: str) -> tuple[str, int]:
    matched = re.fullmatch(r"(.*?)([0-9]*)", path)
    assert matched is not None
    return matched[1], int(matched[2] or 0)
