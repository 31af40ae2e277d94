"""What the checks are made of: the report, a private place, and one module for each way of running a notebook."""
