"""The keys of a profile and of the backend: strict, typed, and refused by name before anything is sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from openai4s_backend_slurm.profiles import MemoryStyle, SlurmProfile, read_options, read_profile
from openai4s_provisioner.orchestration.config import parse_config
from openai4s_provisioner.orchestration.errors import ConfigError
from openai4s_provisioner.orchestration.models import ResourceProfile

EVERYTHING = {
    "partition": "gpu",
    "qos": "interactive",
    "account": "research",
    "constraint": "a100&nvlink",
    "gpu_type": "a100",
    "gres": "shard:2",
    "reservation": "course",
    "nodelist": "g[1-2]",
    "exclude": "g3",
    "exclusive": True,
    "licenses": "matlab:1",
    "memory_style": "cpu",
    "modules": ["cuda/12.1", "gcc"],
    "prologue": "export A=1\n\tulimit -c 0",
    "python": "/usr/bin/python3",
    "path_map": {"/home": "/cluster/home"},
    "sbatch_options": ["--mail-type=NONE"],
    "remove_options": ["--comment"],
}


def profile(**options: Any) -> ResourceProfile:
    return ResourceProfile("lab", "slurm", cpus=2, memory_mb=2048, gpus=2, backend_options=options)


def test_every_key_is_read() -> None:
    found = read_profile(profile(**EVERYTHING))
    assert set(EVERYTHING) == set(SlurmProfile.__dataclass_fields__)
    assert found.memory_style is MemoryStyle.CPU
    assert found.modules == ("cuda/12.1", "gcc")
    assert found.exclusive is True


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partitoin": "gpu"}, "knows no key 'partitoin'"),
        ({"partition": 7}, "partition = 7 is not text"),
        ({"partition": "gpu\n--hold"}, "is not one plain line"),
        ({"qos": "a\0b"}, "is not one plain line"),
        ({"exclusive": "yes"}, "exclusive = 'yes' is neither true nor false"),
        ({"exclusive": 1}, "is neither true nor false"),
        ({"memory_style": "gpu"}, "memory_style = 'gpu' is not known. Choose one of node, cpu, none"),
        ({"modules": "cuda"}, "modules = 'cuda' is not a list"),
        ({"modules": ["cuda", 12]}, "modules = 12 is not text"),
        ({"modules": ["--force"]}, "modules holds '--force'"),
        ({"prologue": ["a"]}, "prologue = ['a'] is not text"),
        ({"prologue": "a\0b"}, "NUL"),
        ({"python": "python3"}, "python = 'python3' is not an absolute path"),
        ({"path_map": ["/home"]}, "path_map = ['/home'] is not a table"),
        ({"path_map": {"home": "/x"}}, "'home' is not an absolute path"),
        ({"path_map": {"/home": "/x/../y"}}, "'/x/../y' is not an absolute path"),
        ({"path_map": {"/home": 3}}, "path_map = 3 is not text"),
        ({"sbatch_options": ["-p gpu"]}, "Write each as '--name=value'"),
        ({"sbatch_options": ["--mem 3"]}, "Write each as '--name=value'"),
        ({"sbatch_options": ["--job-name=mine"]}, "--job-name, which this backend sets itself"),
        ({"sbatch_options": ["--requeue"]}, "--requeue, which this backend sets itself"),
        ({"sbatch_options": ["--array=1-3"]}, "--array, which this backend sets itself"),
        ({"sbatch_options": ["--arra=0-3"]}, "--arra, which this backend sets itself"),  # as the command completes it
        ({"sbatch_options": ["--no-re"]}, "--no-re, which this backend sets itself"),
        ({"sbatch_options": ["--export-f=7"]}, "--export-f, which this backend sets itself"),
        ({"sbatch_options": ["--export=AWS_SECRET_ACCESS_KEY=x"]}, "looks like a credential"),
        ({"sbatch_options": ["--comment=ghp_" + "a" * 36]}, "looks like a credential"),
        ({"remove_options": ["--job-name"]}, "without which no job can be run"),
        ({"remove_options": ["mem"]}, "Write each as '--name'"),
    ],
)
def test_a_wrong_key_type_or_value_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        read_profile(profile(**options))
    assert "profile 'lab'" in str(caught.value)
    assert str(caught.value).rstrip().endswith(".")


@pytest.mark.parametrize("option", ["--export=NONE", "--nice=10", "--exclude=c1", "--time-min=10", "--tmp=1G"])
def test_an_option_that_only_begins_like_a_forbidden_one_passes(option: str) -> None:
    assert read_profile(profile(sbatch_options=[option])).sbatch_options == (option,)


def test_a_device_type_needs_devices() -> None:
    with pytest.raises(ConfigError, match="gpus = 0"):
        read_profile(ResourceProfile("lab", "slurm", backend_options={"gpu_type": "a100"}))


def test_memory_for_each_processor_must_divide() -> None:
    odd = ResourceProfile("lab", "slurm", cpus=3, memory_mb=1000, backend_options={"memory_style": "cpu"})
    with pytest.raises(ConfigError, match="leaves a rest"):
        read_profile(odd)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"deadline": 3}, "knows no key 'deadline'"),
        ({"deadline_s": 0}, "deadline_s = 0 is out of range"),
        ({"deadline_s": True}, "is not a number of seconds"),
        ({"deadline_s": float("nan")}, "is not a number of seconds"),
        ({"min_interval_s": 99}, "min_interval_s = 99 is out of range"),
        ({"isolation_max_age_s": 1}, "isolation_max_age_s = 1 is too small"),
        ({"slurm_conf": "etc/slurm.conf"}, "is not an absolute path"),
        ({"commands": {"rm": "/bin/rm"}}, "commands knows no 'rm'"),
        ({"mask": ["etc"]}, "mask holds 'etc'"),
        ({"cluster": 3}, "cluster = 3 is not text"),
    ],
)
def test_wrong_options_of_the_backend_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        read_options(options)
    assert "[backends.slurm]" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/home/ann/x", "/cluster/home/ann/x"),
        ("/home", "/cluster/home"),
        ("/homes/ann", "/homes/ann"),
        ("/home/shared/a b", "/data/a b"),
    ],
)
def test_the_longest_mapped_beginning_counts(path: str, there: str) -> None:
    site = SlurmProfile(path_map={"/home": "/cluster/home", "/home/shared": "/data"})
    assert site.on_node(path) == there


def test_a_whole_file_with_every_key_is_accepted() -> None:
    """As an administrator writes it."""
    text = """
[backends.slurm]
deadline_s = 10
commands = { sbatch = "/opt/site/bin/sbatch" }

[profiles.gpu]
backend = "slurm"
gpus = 1
partition = "gpu"
modules = ["cuda"]
path_map = { "/home" = "/cluster/home" }
prologue = '''
ulimit -c 0
'''
"""
    config = parse_config(text, Path("cluster.toml"))
    assert read_options(config.backends["slurm"]).commands == {"sbatch": "/opt/site/bin/sbatch"}
    assert read_profile(config.profiles["gpu"]).prologue == "ulimit -c 0\n"
