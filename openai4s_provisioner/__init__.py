"""A Jupyter kernel provisioner: a kernel picked in JupyterLab becomes an isolated session on a backend."""
