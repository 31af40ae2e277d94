"""The server's end of the tunnel: where workers dial in, and the kernel sockets that Jupyter is given."""
