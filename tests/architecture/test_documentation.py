"""What the documentation must not forget: every key of `cluster.toml`, and every command of `./dev` that it names."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields

import pytest

from checks.parts import example_listing, phase_diagram
from openai4s_provisioner.orchestration.config import Limits, Policy
from openai4s_provisioner.orchestration.models import LeasePolicy, ResourceProfile

from .tree import CORE, REPOSITORY

NOT_A_KEY = {"name", "leases", "limits", "backend_options"}
KEYS = sorted(
    {field.name for table in (Limits, Policy, LeasePolicy, ResourceProfile) for field in fields(table)} - NOT_A_KEY
)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_cluster_toml_is_explained_to_administrators(key: str) -> None:
    assert f"`{key}`" in (REPOSITORY / "docs" / "admins.md").read_text(encoding="utf-8")


def test_every_dev_command_that_is_written_about_exists() -> None:
    documents = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]
    named = {word for document in documents for word in re.findall(r"`?\./dev ([a-z]+)", document.read_text("utf-8"))}
    usage = subprocess.run([REPOSITORY / "dev", "help"], capture_output=True, text=True, check=True).stdout
    assert named
    assert named <= set(re.findall(r"^  ([a-z]+)", usage, re.MULTILINE))


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_picture_of_the_phases_is_drawn_from_the_table() -> None:
    assert phase_diagram.found() == phase_diagram.drawn(), "run: python -m checks.parts.phase_diagram"


def test_the_example_backend_that_is_shown_is_the_one_that_is_tested() -> None:
    page = example_listing.PAGE.read_text(encoding="utf-8")
    assert page == example_listing.written(page), "run: python -m checks.parts.example_listing"
    files = {str(path.relative_to(example_listing.EXAMPLE)) for path in example_listing.EXAMPLE.rglob("*.*")}
    assert set(example_listing.listed(page)) == {file for file in files if "__pycache__" not in file}


def test_the_layers_that_are_described_are_those_that_are_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    there = [
        entry.name + ("/" if entry.is_dir() else "") for entry in CORE.iterdir() if not entry.name.startswith("__")
    ]
    assert not [name for name in there if f"`{name}`" not in page]
