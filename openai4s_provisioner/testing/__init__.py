"""For tests of the core and of backends: the contract suite, and fakes named after their failure."""
