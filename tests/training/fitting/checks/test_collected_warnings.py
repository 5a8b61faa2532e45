"""What a run warns of is kept whatever the caller's filters show."""

from __future__ import annotations

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.training.fitting.checks.collected_warnings import collected_warnings


def heard(
    *said: tuple[str, type[Warning]],
    ignore: type[Warning] | None = None,
    error: type[Warning] | None = None,
) -> tuple[list[str], list[str]]:
    """What is kept, and what is shown, where a kind of warnings is ignored or made an error."""
    into: list[str] = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        if ignore is not None:
            warnings.simplefilter("ignore", ignore)
        if error is not None:
            warnings.simplefilter("error", error)
        with collected_warnings(into):
            for text, kind in said:
                warnings.warn(text, kind, stacklevel=1)
    return into, [str(one.message) for one in shown]


def test_what_torch_says_of_itself_is_no_warning_of_the_fit() -> None:
    said = (
        "`torch.jit.script` is deprecated. Please switch to torch.compile",
        "There is a performance drop because we have not yet implemented the batching rule",
        "something of the data",
    )
    kept, shown = heard(*((text, UserWarning) for text in said))
    assert kept == shown == ["something of the data"]


def test_each_is_shown_and_kept_once() -> None:
    kept, shown = heard(*[("a", UserWarning), ("b", UserWarning), ("a", UserWarning)])
    assert kept == shown == ["a", "b"]


def test_what_is_ignored_is_kept() -> None:
    kept, shown = heard(("a", UserWarning), ignore=UserWarning)
    assert (kept, shown) == (["a"], [])


def test_what_python_hides_is_neither_shown_nor_kept() -> None:
    kept, shown = heard(("old", DeprecationWarning), ignore=DeprecationWarning)
    assert kept == shown == []


def test_hints_that_are_silenced_stay_away() -> None:
    said = ("slow", PerformanceHint)
    assert heard(said) == (["slow"], ["slow"])
    assert heard(said, ignore=PerformanceHint) == ([], [])


def test_a_filter_that_makes_errors_raises_where_the_warning_is() -> None:
    with pytest.raises(UserWarning, match="bad"):
        heard(("bad", UserWarning), error=UserWarning)


def test_a_filter_for_a_module_knows_it() -> None:
    into: list[str] = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        with collected_warnings(into):
            warnings.warn("of this module", UserWarning, stacklevel=1)
    assert (into, shown) == (["of this module"], [])


@pytest.mark.parametrize("action", ["always", "ignore"])
def test_a_masked_latent_has_no_bound_whatever_is_shown(action: str) -> None:
    def model(y: Tensor) -> None:
        with poutine.mask(mask=torch.tensor(False)):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 30):
            pyro.sample("y", dist.Normal(a, 1.0), obs=y)

    guide = HyperNetworkGuide(model)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter(action)  # type: ignore[arg-type]
        result = fit(model, guide, torch.randn(30), num_steps=3, seed=0, progress=False)
    assert result.promise == ""
    assert any("no prior holds it" in text for text in result.warnings)


@pytest.mark.parametrize("place", ["script.py", "<stdin>"])
@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning])
def test_the_module_of_a_warning_is_that_of_its_line(place: str, category: type[Warning]) -> None:
    """Scripts and notebooks are no files of a module; ``__main__`` has two names in a process."""
    code = compile("import warnings; warnings.warn('said', category, stacklevel=1)", place, "exec")
    for action in ("ignore", "default", "error"):
        into: list[str] = []
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("ignore" if action == "default" else "default")
            warnings.filterwarnings(action, module="own")  # type: ignore[arg-type]
            with collected_warnings(into):
                names = {"__name__": "own", "category": category}
                if action == "error":
                    with pytest.raises(category, match="said"):
                        exec(code, names)
                else:
                    exec(code, names)
        assert [str(one.message) for one in shown] == (["said"] if action == "default" else [])
        is_kept = action == "default" or (action == "ignore" and category is UserWarning)
        assert into == (["said"] if is_kept else [])


def test_a_line_that_says_something_else_each_time_is_kept_a_few_times_where_it_is_silenced() -> (
    None
):
    said = [(f"step {number}", UserWarning) for number in range(100)]
    kept, shown = heard(*said, ignore=UserWarning)
    assert kept == ["step 0", "step 1", "step 2"] and not shown
    kept, shown = heard(*said)
    assert len(kept) == len(shown) == 100


def test_what_others_say_at_a_line_of_the_package_points_at_the_call() -> None:
    import pyro_implicit

    code = compile("import warnings; warnings.warn('said')", pyro_implicit.__file__, "exec")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with collected_warnings([]):
            exec(code, {"__name__": "pyro_implicit"})
    assert [one.filename for one in shown] == [__file__]
