"""`cluster.toml`: where it is looked for, what it means, and the one sentence for everything wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai4s_provisioner.orchestration.config import SiteConfig, load_config, parse_config
from openai4s_provisioner.orchestration.errors import ConfigError
from openai4s_provisioner.orchestration.models import ReadyCheck, WorkspacePolicy
from openai4s_provisioner.orchestration.toml_lines import key_lines

SOURCE = Path("/site/cluster.toml")


def parsed(text: str) -> SiteConfig:
    return parse_config(text, SOURCE, home="/home/me")


def write(folder: Path, text: str = "[profiles.there]\n[backends.local]\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


# -- where it is looked for --------------------------------------------------------------------------------------------


def test_without_a_file_there_is_this_machine_with_one_profile(tmp_path: Path) -> None:
    config = load_config(None, {}, [tmp_path])
    assert config.source is None
    assert config.default_profile == "default"
    assert {name: profile.backend for name, profile in config.profiles.items()} == {"default": "local"}
    assert config.place_of("profiles") == ""


def test_an_explicit_path_wins_over_the_environment_and_that_over_jupyters_path(tmp_path: Path) -> None:
    along = write(tmp_path / "jupyter" / "openai4s")
    named, explicit = write(tmp_path / "named"), write(tmp_path / "explicit")
    paths = [tmp_path / "nothing", tmp_path / "jupyter"]
    environ = {"OPENAI4S_CLUSTER_TOML": str(named)}
    assert load_config(explicit, environ, paths).source == explicit
    assert load_config(None, environ, paths).source == named
    assert load_config("", {"OPENAI4S_CLUSTER_TOML": ""}, paths).source == along


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_file_that_was_named_must_be_readable(tmp_path: Path, make: object) -> None:
    path = tmp_path / "cluster.toml"
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=str(path)):
        load_config(path, {}, [])


def test_a_file_that_is_not_text_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(b'a = 1\nb = "\xff"\n')
    with pytest.raises(ConfigError, match="line 2: this is not UTF-8"):
        load_config(path, {}, [])


# -- what it means -----------------------------------------------------------------------------------------------------


def test_a_whole_profile_is_read() -> None:
    config = parsed(
        """
        default_profile = "big"
        [limits]
        max_sessions = 3
        [control]
        gone_debounce_s = 1.5
        [backends.place]
        anything = [1, 2]
        [profiles.small]
        [profiles.big]
        backend = "place"
        cpus = 8
        memory_mb = 64000
        workspace = "private"
        ready_check = "kernel_info"
        share = ["/data", "~/models"]
        house_rule = "x"
        [profiles.big.leases]
        idle_ttl_s = 60
        """
    )
    big = config.profiles[config.default_profile]
    assert (big.name, big.backend, big.cpus, big.memory_mb) == ("big", "place", 8, 64000)
    assert (big.workspace, big.ready_check) == (WorkspacePolicy.PRIVATE, ReadyCheck.KERNEL_INFO)
    assert big.share == ("/data", "/home/me/models")
    assert big.leases.idle_ttl_s == 60
    assert big.backend_options == {"house_rule": "x"}
    assert config.backends == {"place": {"anything": [1, 2]}}
    assert (config.limits.max_sessions, config.policy.gone_debounce_s) == (3, 1.5)
    assert config.place_of("profiles", "big", "house_rule") == "/site/cluster.toml, line 17"


def test_the_example_of_the_repository_is_valid_and_says_what_the_code_does_by_default() -> None:
    path = Path(__file__).parents[2] / "cluster.toml"
    shown = load_config(path, {}, [])
    default = load_config(None, {}, [])
    assert shown.profiles == default.profiles
    assert (shown.limits, shown.policy) == (default.limits, default.policy)
    assert parse_config(path.read_text().replace("# period", "period").replace("# [control]", "[control]"), path)


# -- what is wrong in it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "\n\n[limits]\nmax_session = 3\n",
            "line 4: limits.max_session = 3 is not a key that is known here. Did you mean max_sessions?",
        ),
        ("colour = 'red'\n", "line 1: colour = 'red' is not a key that is known here. Remove it."),
        ("[limits]\n\nmax_sessions = 0\n", "line 3: limits.max_sessions = 0 is out of range"),
        ("[limits]\nmax_sessions = true\n", "limits.max_sessions = true is not a whole number"),
        ("[profiles.a]\ncpus = '4'\n", "line 2: profiles.a.cpus = '4' is not a whole number. Use one from 1 to 4096."),
        ("[profiles.a]\ncpus = 4.0\n", "line 2: profiles.a.cpus = 4.0 is not a whole number"),
        ("[profiles.a]\nbackend = 3\n", "line 2: profiles.a.backend = 3 is not text. Put it in quotes."),
        ("[profiles.a]\nmemory_mb = -1\n", "line 2: profiles.a.memory_mb = -1 is out of range"),
        ("[profiles.a.leases]\nidle_ttl_s = 0\n", "line 2: profiles.a.leases.idle_ttl_s = 0 is out of range"),
        ("[profiles.a.leases]\nmax_lifetime_s = 3153600000\n", "max_lifetime_s = 3153600000 is out of range"),
        ("[profiles.a]\nleases = { idle_ttl = 3 }\n", "line 2: profiles.a.leases.idle_ttl = 3 is not a key"),
        ("[profiles.a]\nleases = 3\n", "profiles.a.leases = 3 is not a table. Write it as [profiles.a.leases]."),
        ("[profiles.a.leases]\nbusy_counts = 'yes'\n", "busy_counts = 'yes' is neither true nor false"),
        (
            "[profiles.a]\nworkspace = 'home'\n",
            "workspace = 'home' is not known. Choose one of root, notebook, private.",
        ),
        ("[profiles.a]\nshare = ['data']\n", "share = 'data' is not an absolute path"),
        ("[profiles.a]\nshare = '/data'\n", "share = '/data' is not a list of paths"),
        ("[profiles.'a b']\n", "line 1: 'a b' is not a usable profile name"),
        ("[profiles.a]\n[profiles.a.backend]\nx = 1\n", "line 2: profiles.a.backend is not text"),
        ("default_profile = 'b'\n[profiles.a]\n", "line 1: default_profile = 'b' is not a profile. Choose one of a."),
        ("[control]\ndrain_s = nan\n", "line 2: control.drain_s = nan is out of range"),
        ("[control]\ndrain_s = '1'\n", "line 2: control.drain_s = '1' is not a number"),
        ("profiles = []\n", "line 1: profiles = [] is not a table"),
        ('[profiles.a]\ndisplay_name = "a\\u001bb"\n', "holds a control character"),
        ("a = 1\nb = \n", "line 2"),
        ("[limits\n", "line 1"),
        ('[profiles.a]\nx = """\nnever closed\n', "line 4, the end of the file"),
        ("a = 1\na = 2\n", "line 2"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_file_and_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    message = str(caught.value)
    assert told in message
    assert message.startswith(str(SOURCE))
    assert "\n" not in message
    assert message[-1] in ".?"


def test_lines_are_found_through_every_form_that_toml_has() -> None:
    lines = key_lines(
        """# comment with a = 1
        a.b = 1
        [t."quoted.name"] # comment
        many = [
          1, # [not a table]
          2,
        ]
        text = \"\"\"
        [neither]
        x = 1
        \"\"\"
        after = { inner = 1 }
        [[list]]
        y = 2
        """
    )
    assert lines["a", "b"] == 2
    assert lines["t", "quoted.name"] == 3
    assert lines["t", "quoted.name", "many"] == 4
    assert lines["t", "quoted.name", "after", "inner"] == 12
    assert lines["list", "y"] == 14
    assert ("neither",) not in lines


def test_the_sites_registration_timeout_holds_for_profiles_that_state_none(tmp_path: Path) -> None:
    text = "[control]\nregistration_timeout_s = 42\n"
    assert parse_config(text, tmp_path / "x.toml").profiles["default"].registration_timeout_s == 42
    text += "[profiles.a]\n[profiles.b]\nregistration_timeout_s = 7\n"
    profiles = parse_config(text, tmp_path / "x.toml").profiles
    assert [profiles[name].registration_timeout_s for name in ("a", "b")] == [42, 7]
