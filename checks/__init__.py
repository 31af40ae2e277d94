"""Acceptance checks: each prints its figures, the verdict on its last line, and exits non-zero when short.

They run real programs as a person would, at full length; `./dev check NAME` starts them.
"""
