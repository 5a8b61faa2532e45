"""The memory of a step, counted from what torch allocates."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def peak_bytes(step: Callable[[], Any]) -> int:
    """
    Bytes of CPU tensors that are held at once while something runs, at most, beyond those that were
    held before: what it takes and not what the allocator keeps, hence the same on each machine.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell of each start and end
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    kineto = profiled.profiler.kineto_results  # type: ignore[union-attr]
    events = [event for event in kineto.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
