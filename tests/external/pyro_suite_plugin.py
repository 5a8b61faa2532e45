"""A plugin of pytest for ``pyro_suite.py``: our guides and objectives in the place of Pyro's."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest
from pyro_suite_expected import NUMBERS, OTHERS, OWN, PLATES, REFUSED

#: guides that are replaced, by ours of the kind named
GUIDES = {
    "AutoDiagonalNormal": "DefaultGuide",
    "AutoMultivariateNormal": "ResidualGuide",
    "AutoLowRankMultivariateNormal": "MatrixGuide",
}
#: bounds that are replaced by one of ours
BOUNDS = (
    "Trace_ELBO",
    "TraceMeanField_ELBO",
    "TraceGraph_ELBO",
    "TraceEnum_ELBO",
    "JitTrace_ELBO",
    "JitTraceGraph_ELBO",
    "JitTraceEnum_ELBO",
)
RUN = os.environ.get("PYRO_SUITE_RUN", "")
#: the parameter of tests that are run with each of our guides
WHICH = "guide_of_ours"
#: our classes in the tests, by their names there
OURS: dict[str, type] = {}
#: of which one was made since the test began
MADE: set[str] = set()
#: the test that is run, which says how its guides begin
START: list[Any] = []
#: what came of a test that was run again, by its identifier
AGAIN: dict[str, str] = {}


def pytest_configure(config: Any) -> None:
    """Replaces guides and bounds, before the tests import them."""
    import pyro.infer
    import pyro.infer.autoguide as autoguide

    if not RUN:
        return
    guides = _guides()
    for theirs, ours in GUIDES.items():
        setattr(autoguide, theirs, guides[ours])
        if RUN != "pyro_guides":  # there guides stay Pyro's, and make Pyro's
            setattr(autoguide.guides, theirs, guides[ours])
    bounds = _bounds()
    for name, bound in bounds.items():
        setattr(pyro.infer, name, bound)
    OURS.update(guides, **bounds)


def _noted(kind: type, name: str, init: Any) -> type:
    """A subclass that tells when one is made."""

    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        MADE.add(name)
        init(self, *args, **kwargs)

    made = type(name, (kind,), {"__init__": noting, "__module__": __name__})
    globals()[name] = made  # so that they can be pickled
    return made


def _bounds() -> dict[str, type]:
    """Objectives of ours with the arguments of Pyro's."""
    from pyro_implicit import AlphaEnergy, LinearisedELBO
    from pyro_implicit.objectives import IWAE

    if RUN == "autoguide":
        return {name: _noted(LinearisedELBO, name, LinearisedELBO.__init__) for name in BOUNDS}

    def energy(self: Any, num_particles: int = 1, **options: Any) -> None:
        AlphaEnergy.__init__(self, num_particles, alpha=0.0, **options)

    def renyi(self: Any, alpha: float = 0, num_particles: int = 2, **options: Any) -> None:
        IWAE.__init__(self, num_particles, alpha=alpha, **options)

    bounds = {name: _noted(AlphaEnergy, name, energy) for name in BOUNDS}
    return bounds | {"RenyiELBO": _noted(IWAE, "RenyiELBO", renyi)}


def _guides() -> dict[str, type]:
    """Guides of ours with the arguments of Pyro's."""
    from pyro_implicit import HyperNetworkGuide, MMNNGuide
    from pyro_implicit.generators import ResidualGenerator

    options: dict[str, tuple[type, dict[str, Any]]] = {
        "DefaultGuide": (HyperNetworkGuide, {}),
        "ResidualGuide": (HyperNetworkGuide, {"generator": ResidualGenerator}),
        "MatrixGuide": (MMNNGuide, {}),
    }
    made = {}
    for name, (kind, fixed) in options.items():
        made[name] = _noted(kind, name, functools.partial(_make_guide, kind, fixed))
        made[name]._loc_scale = _loc_scale  # type: ignore[attr-defined]
        made[name]._unpack_latent = _unpack_latent  # type: ignore[attr-defined]
    return made


def _make_guide(
    kind: Any,
    fixed: dict[str, Any],
    self: Any,
    model: Any,
    init_loc_fn: Any = None,
    init_scale: float | None = None,
    rank: int | None = None,
    **others: Any,
) -> None:
    """Makes a guide of ours; ``rank`` is of a Gaussian's covariance."""
    if init_scale is not None:
        others["init_scale"] = init_scale
    begins = os.environ.get("PYRO_SUITE_START") or bool(NUMBERS.search(_name(START[0])))
    others["init_from"] = "auto" if begins else None
    kind.__init__(self, model, init_loc_fn=init_loc_fn, **fixed, **others)


def _loc_scale(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What Pyro's Gaussians tell of themselves, from draws; for latents without a constraint."""
    import torch

    draws = self.sample(1000, *args, **kwargs).values()
    flat = torch.cat([value.reshape(1000, -1) for value in draws], -1)
    return flat.mean(0), flat.std(0)


def _unpack_latent(self: Any, latent: Any) -> Iterator[Any]:
    """Pyro's sites and their unconstrained values, of a flat draw."""
    from pyro_implicit.handlers.flat_latents import by_site

    for site, part in by_site(latent, self.sites):
        yield self.prototype_trace.nodes[site.name], part


# ---- which tests are run


def pytest_generate_tests(metafunc: Any) -> None:
    """A test of prediction that makes an autoguide is run with each of ours."""
    if RUN == "predictive" and "AutoDiagonalNormal" in metafunc.function.__code__.co_names:
        metafunc.fixturenames.append(WHICH)
        metafunc.parametrize(WHICH, list(GUIDES.values()), indirect=True)


@pytest.fixture
def guide_of_ours(request: Any) -> Any:
    """The name of the guide that a test is run with."""
    return request.param


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out tests of what is not ours, and in either run of a file those of the other."""
    if RUN == "continuous":
        for module in {item.module for item in items}:
            module.dist = _Continuous()
    out = [item for item in items if not _belongs(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if _belongs(item)]


class _Continuous:
    """Pyro's distributions, the Bernoulli being a Normal."""

    def __getattr__(self, name: str) -> Any:
        import pyro.distributions as dist

        return (lambda loc: dist.Normal(loc, 1.0)) if name == "Bernoulli" else getattr(dist, name)


def _belongs(item: Any) -> bool:
    if any(pattern.search(item.nodeid) for pattern in OTHERS):
        return False
    if RUN == "continuous":
        return bool(PLATES.search(item.name)) and "Bernoulli" in inspect.getsource(item.function)
    if RUN not in ("autoguide", "pyro_guides"):
        return True
    params = getattr(getattr(item, "callspec", None), "params", {})
    guides = [params[key] for key in ("auto_class", "continuous_class", "Guide") if key in params]
    named = any(name in item.function.__code__.co_names for name in GUIDES)
    return (any(map(_makes_ours, guides)) if guides else named) == (RUN == "autoguide")


def _makes_ours(value: Any) -> bool:
    """Whether a test's parameter is a guide of ours, or a function that makes one."""
    value = value.func if isinstance(value, functools.partial) else value
    if isinstance(value, type):
        return issubclass(value, tuple(OURS[name] for name in GUIDES.values()))
    names = getattr(getattr(value, "__code__", None), "co_names", ())
    return any(name in names for name in GUIDES)


# ---- what came of them


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Runs a test again with the numbers that are our own, where it fails as it stands."""
    MADE.clear()
    START[:] = [item]
    with pytest.MonkeyPatch.context() as patch:
        which = getattr(getattr(item, "callspec", None), "params", {}).get(WHICH)
        if which is not None:
            patch.setattr(item.module, "AutoDiagonalNormal", OURS[which])
        try:
            return (yield)
        except (AssertionError, UserWarning):  # the latter of a generator that folds
            entries = [one for one in OWN if one.test.search(_name(item))]
            if not entries:
                raise
            _reset()
            for entry in entries:
                patch.setattr(*entry.of(item.module))
            item.runtest()
            AGAIN[item.nodeid] = "; ".join(entry.reason for entry in entries)


def _name(item: Any) -> str:
    """The test's name with that of its class and its parameters."""
    name: str = item.nodeid.partition("::")[2]
    return name


def _reset() -> None:
    """As Pyro's tests begin."""
    import pyro

    pyro.clear_param_store()
    pyro.set_rng_seed(123)


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    """Writes one line for each test in which something of ours took part."""
    if call.when != "call" or not MADE or item.get_closest_marker("xfail") is not None:
        return
    kind, why = "passed", ""
    if item.nodeid in AGAIN:
        kind, why = "own", AGAIN[item.nodeid]
    elif call.excinfo is not None:
        kind, why = _kind(_name(item), call.excinfo.value)
    if kind:
        with open(os.environ["PYRO_SUITE_REPORT"], "a") as file:
            file.write(f"{kind}\t{_name(item)}\t{why}\n")


def _kind(test: str, error: BaseException) -> tuple[str, str]:
    """What a failed test is, and why; nothing for one that Pyro skips or gives up by itself."""
    from pyro_implicit.exceptions import ImplicitError

    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:  # an error of ours where the test matched the message of another
        chain.append(link)
        link = link.__cause__ or link.__context__
    for one in chain:
        for entry in REFUSED:
            if entry.allows(test, one):
                return "refused", entry.reason
    mine = any(isinstance(one, ImplicitError) for one in chain)
    if type(error).__name__ in ("XFailed", "Skipped") and not mine:
        return "", ""
    text = (str(error) or "no message").splitlines()
    told = " / ".join(line.strip() for line in text[:3]).replace("\t", " ")[:240]
    return "defect", f"{type(error).__name__}: {told}"
