"""Allocations as jobs of a Slurm cluster. The core finds `create_backend` through its entry point."""

from __future__ import annotations

from .backend import create_backend

__all__ = ["create_backend"]
