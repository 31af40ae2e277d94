"""Acceptance checks of this backend, run by `./dev check NAME`, on real clusters that they start themselves."""
