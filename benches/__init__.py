"""Benchmarks: each prints figures, and decides nothing. `./dev bench NAME` starts them."""
