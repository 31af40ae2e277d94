"""What runs in an allocation: the worker outside the sandbox and the inner inside it. Standard library only."""
