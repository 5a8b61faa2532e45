"""The checks of distributions as results of a function, for graphs that cannot stop at one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["NotedChecks"]


class NotedChecks(TorchFunctionMode):
    """
    Lets a program pass the checks of its distributions, and keeps what they found.

    Distributions of torch ask ``torch._is_all_true`` whether parameters are valid, and raise an
    error if not. Within, all are taken for valid; nothing else that a program asks is touched.

    Example::

        import torch
        from torch.distributions import Normal

        from pyro_implicit.ops.graphs.noted_checks import NotedChecks

        with NotedChecks() as checks:
            Normal(torch.zeros(3), -torch.ones(3), validate_args=True)
        checks.passed()  # tensor(False)
    """

    def __init__(self) -> None:
        super().__init__()
        #: whether each check was passed, of shape ``()`` each
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__ and any(args[0] is one for one in self.found[-1:]):
            return True
        if func is not torch._is_all_true:
            return func(*args, **(kwargs or {}))
        self.found.append(args[0].all())  # which torch maps, so that each entry has its own
        return self.found[-1]

    def passed(self) -> Tensor:
        """
        What was found.

        :returns: whether all checks were passed, shape ``()``.
        """
        if not self.found:
            return torch.ones((), dtype=torch.bool)
        return torch.stack(self.found).all()
