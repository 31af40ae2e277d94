"""The control plane: what was asked for, what is, and the steps between. Knows no backend and no network library."""
