"""The main job behind ``python -m pyro_implicit``; private, nothing in here is a promise."""
