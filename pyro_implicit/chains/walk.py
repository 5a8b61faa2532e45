"""The loop over steps: what is tuned when, what is kept, and how it can be broken off."""

# Shape legend: C chains, m unconstrained latents, T kept draws.
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.chains.kernel import Kernel, State, Statistics
from pyro_implicit.chains.units import kind_of, learned_scale, observe, opened, window_ends

__all__ = ["Progress", "Walk"]


@dataclass(frozen=True)
class Progress:
    """
    Where chains are: replaced as a whole after each step, never changed.

    :param dict state: of the kernel.
    :param torch.Tensor random: state of the generator.
    :param int num_steps: gradients per chain so far.
    :param int num_after: steps of the kernel since the warm-up.
    :param int num_kept: draws of each chain that are kept.
    :param int num_gradients: of all chains, the search for modes included.
    :param torch.Tensor diverging: chains with a refused step since the last draw that was kept.
    """

    state: State
    random: Tensor
    num_gradients: int
    num_steps: int = 0
    num_after: int = 0
    num_kept: int = 0
    diverging: Tensor | None = None


@dataclass
class Walk:
    """
    Chains on their way.

    :param kernel: how they move.
    :param int num_warmup: gradients per chain that are for tuning, and whose draws are not kept.
    :param torch.Generator generator: of all random numbers.
    :param Progress progress: where they are.
    :param int target: gradients per chain that were asked for.
    """

    kernel: Kernel
    num_warmup: int
    generator: torch.Generator
    progress: Progress
    target: int = 0
    kept: list[Tensor] = field(default_factory=list)
    statistics: list[Statistics] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        kernel: Kernel,
        num_warmup: int,
        generator: torch.Generator,
        u: Tensor,
        density: ChainDensity,
    ) -> Walk:
        """
        Sets chains on their starting points.

        :param torch.Tensor u: shape ``(C, m)``.
        :param ChainDensity density: ready for them.
        :returns: chains that have not taken a step.
        """
        state = kernel.begin(u, density, generator)
        if num_warmup:
            state = {**state, **opened(u, _kind(kernel, u))}
        progress = Progress(state, generator.get_state(), density.num_gradients)
        return cls(kernel, num_warmup, generator, progress)

    def advance(self, density: ChainDensity, more: int, bar: Any) -> bool:
        """
        Takes steps; one that is broken off is as if it had not been begun.

        :param ChainDensity density: ready for the chains.
        :param int more: gradients per chain, at least so many.
        :param bar: a progress bar.
        :returns: whether it was interrupted from the keyboard; after an error it may go on, too.
        """
        self.target += more
        density.num_gradients = self.progress.num_gradients
        try:
            while self.progress.num_steps < self.target:
                self.progress = self._step(density)
                self._show(bar)
        except BaseException as error:  # or a later call would take the steps that are left, too
            del self.kept[self.progress.num_kept :], self.statistics[self.progress.num_kept :]
            self.generator.set_state(self.progress.random)
            self.target = self.progress.num_steps
            if isinstance(error, KeyboardInterrupt):
                return True
            raise
        return False

    def _step(self, density: ChainDensity) -> Progress:
        now = self.progress
        tune = now.num_steps < self.num_warmup
        state, stats = self.kernel.step(now.state, density, self.generator, tune)
        spent = density.num_gradients - now.num_gradients
        num_steps = now.num_steps + spent // len(state["u"])
        if tune:
            state = self._learned(state, now.num_steps, num_steps)
        new = replace(
            now,
            state=state,
            random=self.generator.get_state(),
            num_gradients=density.num_gradients,
            num_steps=num_steps,
        )
        return new if tune else self._keep(new, stats)

    def _learned(self, state: State, before: int, after: int) -> State:
        """What the warm-up learns from a step."""
        state = {**state, **observe(state)}
        if any(before < end <= after for end in window_ends(self.num_warmup)):
            scale = learned_scale(state)
            if scale is not None:
                kind = kind_of(self.kernel.precondition, len(scale))
                known = state["scale"] if kind is None else scale
                state = self.kernel.rescale(state, known, self.generator)
                state = {**state, **opened(state["u"], _kind(self.kernel, state["u"]))}
        if after < self.num_warmup:
            return state
        state = self.kernel.settle(state)
        return {name: v for name, v in state.items() if not name.startswith("window_")}

    def _keep(self, new: Progress, stats: Statistics) -> Progress:
        seen = stats["diverging"] if new.diverging is None else new.diverging | stats["diverging"]
        new = replace(new, num_after=new.num_after + 1, diverging=seen)
        if new.num_after % self.kernel.thin:
            return new
        self.kept.append(new.state["u"])
        self.statistics.append({**stats, "diverging": seen})
        return replace(new, num_kept=new.num_kept + 1, diverging=None)

    def _show(self, bar: Any) -> None:
        now = self.progress
        bar.update(min(now.num_steps, self.target) - bar.n)
        if now.num_steps % 20 == 0:
            phase = "warm-up" if now.num_steps < self.num_warmup else "sampling"
            size, lp = (float(now.state[key].mean()) for key in ("step_size", "value"))
            bar.set_postfix_str(f"{phase}, lp {lp:.5g}, step {size:.3g}", refresh=False)


def _kind(kernel: Kernel, u: Tensor) -> str:
    return kind_of(kernel.precondition, u.shape[-1]) or "diagonal"
