"""Which accelerators a session is shown: those that were granted, under the numbers that are right where it looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai4s_provisioner.sandbox.devices import Machine, granted


class FakeMachine(Machine):
    """Plain files stand for devices; those of `forbidden` cannot be opened, as under a device cgroup."""

    def __init__(self, root: Path, *names: str, forbidden: tuple[str, ...] = ()) -> None:
        super().__init__(str(root))
        self.forbidden = {f"{root}/dev/{name}" for name in forbidden}
        for name in (*names, *forbidden):
            path = root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def may_open(self, path: str) -> bool:
        return Path(path).exists() and path not in self.forbidden

    def short(self, paths: tuple[str, ...]) -> list[str]:
        return [path.removeprefix(f"{self.root}/dev/") for path in paths]


FOUR = ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1")
SHARED = ["nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"]


@pytest.mark.parametrize(
    ("value", "shown", "inside"),
    [
        ("0", ["nvidia0"], "0"),
        ("2", ["nvidia2"], "0"),
        ("3,1", ["nvidia1", "nvidia10"], "1,0"),
        ("1, 2", ["nvidia1", "nvidia2"], "0,1"),
        ("10", ["nvidia10"], "0"),
        ("0,7", ["nvidia0"], "0"),
    ],
)
def test_only_the_granted_ones_are_shown_and_counted_anew(
    tmp_path: Path, value: str, shown: list[str], inside: str
) -> None:
    machine = FakeMachine(tmp_path, *FOUR)
    grant = granted({"CUDA_VISIBLE_DEVICES": value, "HOME": "/x"}, 1, machine)
    assert machine.short(grant.devices) == [*shown, *SHARED]
    assert grant.environment == {"CUDA_VISIBLE_DEVICES": inside}


def test_where_the_others_are_forbidden_numbers_count_what_is_left(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "nvidia2", "nvidia3", "nvidiactl", forbidden=("nvidia0", "nvidia1"))
    grant = granted({"CUDA_VISIBLE_DEVICES": "0,1"}, 2, machine)
    assert machine.short(grant.devices) == ["nvidia2", "nvidia3", "nvidiactl"]
    assert grant.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    one = granted({"CUDA_VISIBLE_DEVICES": "3"}, 1, machine)  # a site that counts as the machine does
    assert machine.short(one.devices) == ["nvidia3", "nvidiactl"]
    assert one.environment["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("value", ["", "NoDevFiles", "-1"])
def test_nothing_is_shown_where_nothing_was_granted(tmp_path: Path, value: str) -> None:
    machine = FakeMachine(tmp_path, *FOUR)
    grant = granted({"CUDA_VISIBLE_DEVICES": value}, 0, machine)
    assert grant.devices == ()
    assert grant.environment == {"CUDA_VISIBLE_DEVICES": value}
    assert granted({}, 0, machine).devices == ()


def test_without_a_word_a_profile_with_accelerators_shows_what_can_be_opened(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, *FOUR, forbidden=("nvidia1",))
    shown = machine.short(granted({}, 1, machine).devices)
    assert shown == ["nvidia0", "nvidia2", "nvidia10", *SHARED]


def test_cards_are_named_by_their_uuid_as_well(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, *FOUR)
    for minor, uuid in ((1, "GPU-aaaa-1"), (2, "GPU-bbbb-2")):
        told = tmp_path / f"proc/driver/nvidia/gpus/0000:0{minor}/information"
        told.parent.mkdir(parents=True)
        told.write_text(f"Model: \t\t A card\nGPU UUID:   \t {uuid}\nDevice Minor: \t {minor}\n")
    grant = granted({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, 1, machine)
    assert machine.short(grant.devices)[0] == "nvidia2"
    assert grant.environment["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb", "no number, so nothing to count anew"
    assert granted({"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, 1, machine).devices == ()
    parts = granted({"CUDA_VISIBLE_DEVICES": "MIG-1-2-3"}, 1, machine)
    assert len(machine.short(parts.devices)) == 4 + len(SHARED)
    assert parts.environment["CUDA_VISIBLE_DEVICES"] == "MIG-1-2-3"


def test_other_makers_cards_come_with_their_own_devices(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "kfd", *(f"dri/renderD{128 + n}" for n in range(4)), "dri/card1", "dri/card2")
    for number, vendor in enumerate(("0x1a03", "0x1002", "0x1002", "0x8086")):  # the first only shows a console
        device = tmp_path / f"sys/class/drm/renderD{128 + number}/device"
        (device / f"drm/card{number}").mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
    amd = granted({"ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": ""}, 1, machine)
    assert machine.short(amd.devices) == ["dri/renderD130", "dri/card2", "kfd"]
    assert amd.environment["ROCR_VISIBLE_DEVICES"] == "0"
    intel = granted({"ZE_AFFINITY_MASK": "0.1", "ROCR_VISIBLE_DEVICES": ""}, 1, machine)
    assert machine.short(intel.devices) == ["dri/renderD131"]
    assert intel.environment["ZE_AFFINITY_MASK"] == "0.1"


def test_the_fast_network_comes_with_the_accelerators(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "nvidia0", "infiniband/uverbs0", "infiniband/rdma_cm", forbidden=("infiniband/x",))
    assert machine.short(granted({"CUDA_VISIBLE_DEVICES": "0"}, 1, machine).devices) == [
        *("nvidia0", "infiniband/rdma_cm", "infiniband/uverbs0")
    ]
    assert granted({}, 0, machine).devices == ()


def test_a_backend_may_name_devices_itself(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "special0", forbidden=("special1",))
    named = ":".join([f"{tmp_path}/dev/special0", f"{tmp_path}/dev/special1", "relative", ""])
    assert machine.short(granted({"OPENAI4S_DEVICES": named}, 0, machine).devices) == ["special0"]


def test_what_can_be_opened_is_asked_of_the_system(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    assert Machine().may_open("/dev/null")
    assert not Machine().may_open(str(plain)), "a file is no device"
    assert not Machine().may_open(str(tmp_path / "absent"))
