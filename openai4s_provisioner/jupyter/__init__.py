"""Jupyter's edge: the provisioner, the kernelspecs, the settings and the command line."""
