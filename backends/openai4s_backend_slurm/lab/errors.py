"""The one exception of the lab: what could not be started or asked, and what to do about it."""

from __future__ import annotations


class LabError(Exception):
    """The cluster cannot be had as asked. The text is for the person who asked."""
