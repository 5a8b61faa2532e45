"""What holds for every test: a fixed seed, a clean parameter store, and no leaked global state."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# PYRO_IMPLICIT_SEED=<number> runs the suite with other draws and other examples, to see that no
# test passes by the luck of its seed, and with more of them.
SEED = int(os.environ.get("PYRO_IMPLICIT_SEED", 20240229))
OTHER_SEED = "PYRO_IMPLICIT_SEED" in os.environ


def pytest_configure(config: pytest.Config) -> None:
    """
    What a process needs that runs tests. One that hands them out to others goes without: nothing
    here imports torch, which takes seconds, at module level.
    """
    if getattr(config.option, "numprocesses", None):
        return
    gc.disable()  # until all tests are known, see pytest_collection_finish
    import torch
    from hypothesis import settings

    settings.register_profile(
        "pyro_implicit",
        deadline=None,
        derandomize=not OTHER_SEED,
        max_examples=100 if OTHER_SEED else 40,
    )
    settings.load_profile("pyro_implicit")
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # the processes share the cores
    if not torch.cuda.is_available():
        # once Lightning is imported, torch looks for a driver in each step of Adam, 0.2 ms
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        # the same numbers; else a formatted stack is kept for each kind of device, at each seed
        torch.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))


def pytest_collection_finish() -> None:
    """
    Modules and tests stay until the end: whoever looks for garbage need not look at them.

    They are a million objects, at which each full search looked for half a second, while they were
    made and in many a test.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)  # what a test leaves is little: half of all searches
    gc.enable()
    atexit.register(gc.unfreeze)  # some libraries tell what is still there at the end


def _global_state() -> dict[str, Any]:
    """Settings that a test may change for itself, and must put back."""
    import pyro
    import torch

    return {
        "torch default dtype": torch.get_default_dtype(),
        "torch grad mode": torch.is_grad_enabled(),
        **pyro.settings.get(),  # the validation of torch's distributions is one of them
    }


def _restore(state: dict[str, Any]) -> None:
    import pyro
    import torch

    pyro_settings = dict(state)
    torch.set_default_dtype(pyro_settings.pop("torch default dtype"))
    torch.set_grad_enabled(pyro_settings.pop("torch grad mode"))
    pyro.settings.set(**pyro_settings)


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    """Seed, empty parameter store, and a failure for the test that leaks global state."""
    import pyro

    from pyro_implicit._random import seed_all  # pyro.set_rng_seed, without its milliseconds

    before = _global_state()
    pyro.clear_param_store()
    seed_all(SEED)
    yield
    after = _global_state()
    _restore(before)
    pyro.clear_param_store()
    leaked = [name for name in before if before[name] != after[name]]
    if leaked:
        changes = "; ".join(f"{name}: {before[name]} -> {after[name]}" for name in leaked)
        pytest.fail(f"the test leaks global state ({changes})")


@pytest.fixture(autouse=True, scope="session")
def bare_starts() -> None:
    """
    Guides start bare in tests of other things; ``@pytest.mark.automatic_start`` keeps the default.

    A search for a start is hundreds of evaluations of the model, and these tests build hundreds of
    guides, some of them in fixtures that many tests share.
    """
    from pyro_implicit.guides import ImplicitGuide

    ImplicitGuide.__init__.__kwdefaults__["init_from"] = None


@pytest.fixture(autouse=True)
def automatic_start(
    request: pytest.FixtureRequest, bare_starts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a user has who says nothing, in tests that are marked so."""
    if "automatic_start" in request.keywords:
        from pyro_implicit.guides import ImplicitGuide

        monkeypatch.setitem(ImplicitGuide.__init__.__kwdefaults__, "init_from", "auto")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of public data sets: $PYRO_IMPLICIT_DATA, or shared/data beside the checkout."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("PYRO_IMPLICIT_DATA", default))
    if not root.is_dir():
        pytest.skip("no data folder: set PYRO_IMPLICIT_DATA, or put it at ../shared/data")
    return root


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` are skipped where there is no CUDA device."""
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
