"""Benchmarks of this backend, run by `./dev bench NAME`."""
