"""The training loop with a stop rule: what is decided in it, one file each."""
