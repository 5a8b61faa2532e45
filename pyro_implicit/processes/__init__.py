"""Implicit processes: random functions as distributions."""

from pyro_implicit.processes.implicit_process import ImplicitProcess
from pyro_implicit.processes.random_functions import NeuralSampler, RandomNetwork

__all__ = [
    "ImplicitProcess",
    "NeuralSampler",
    "RandomNetwork",
]
