"""From fitted guides and processes to ArviZ, on both of its lines."""

from pyro_implicit.arviz.process_to_arviz import process_to_arviz
from pyro_implicit.arviz.to_arviz import to_arviz

__all__ = [
    "process_to_arviz",
    "to_arviz",
]
