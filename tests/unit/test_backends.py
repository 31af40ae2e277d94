"""Which backends are loaded, and what an admin reads about one that cannot be."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from openai4s_provisioner import parts
from openai4s_provisioner.app_values import AppSettings
from openai4s_provisioner.orchestration.config import parse_config
from openai4s_provisioner.orchestration.errors import ConfigError

SITE = Path("/site/cluster.toml")


@pytest.fixture
def settings(tmp_path: Path) -> AppSettings:
    return AppSettings(tmp_path, tmp_path, tmp_path, cluster_toml=None, config_path=(), jupyter_folders=())


def loaded(content: str, settings: AppSettings) -> Any:
    return parts.load_backends(parse_config(content, SITE), settings)


def test_options_of_a_backend_that_does_not_exist_are_refused_by_line(settings: AppSettings) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.toml, line 2: \[backends\.lokal\] .* Installed: .*local"):
        loaded("\n[backends.lokal]\nmax_concurrent = 1\n", settings)


def test_options_of_a_backend_that_a_profile_uses_wait_for_its_installation(settings: AppSettings) -> None:
    content = '[backends.cloud]\nregion = 1\n[profiles.here]\n[profiles.there]\nbackend = "cloud"\n'
    assert set(loaded(content, settings)) == {"local"}


def test_a_backend_that_cannot_be_imported_is_named(settings: AppSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("cloud", "no_such_package:create_backend", parts.BACKENDS)
    monkeypatch.setattr(parts, "entry_points", lambda group: [broken])
    with pytest.raises(ConfigError, match=r"line 1: the backend 'cloud' cannot be loaded .*no_such_package.*Repair"):
        loaded('[backends.cloud]\n[profiles.there]\nbackend = "cloud"\n', settings)
