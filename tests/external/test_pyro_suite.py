"""The script that runs Pyro's own tests tells what passes, what is refused and what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyro_implicit import exceptions

sys.path.insert(0, str(Path(__file__).parent))
import pyro_suite
from pyro_suite_expected import OWN, REFUSED, Own, _own, _refusal

sys.path.pop(0)


def test_a_refusal_is_one_error_of_one_test() -> None:
    refusal = _refusal(r"^test_a\[", "SiteError", "no plate", "why")
    error = exceptions.SiteError("there is no plate here")
    assert refusal.allows("test_a[1]", error)
    assert not refusal.allows("test_ab[1]", error)
    assert not refusal.allows("test_a[1]", exceptions.SiteError("another"))
    assert not refusal.allows("test_a[1]", ValueError("there is no plate here"))


def test_every_entry_has_a_reason_and_every_error_is_ours() -> None:
    assert all(issubclass(getattr(exceptions, r.error), exceptions.ImplicitError) for r in REFUSED)
    assert all(entry.reason and entry.phrase for entry in REFUSED)
    assert all(entry.reason for entry in OWN)


def recorder() -> SimpleNamespace:
    def close(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    return SimpleNamespace(close=close, optim=SimpleNamespace(Adam=close), other="other")


@pytest.mark.parametrize(
    ("entry", "args", "kwargs", "expected"),
    [
        (_own("", "close", "atol", 0.01, 0.4, ""), (1,), {"atol": 0.01}, ((1,), {"atol": 0.4})),
        (_own("", "close", "atol", 0.01, 0.4, ""), (1,), {"atol": 0.05}, ((1,), {"atol": 0.05})),
        (_own("", "close", "prec", None, 0.1, ""), (1,), {}, ((1,), {"prec": 0.1})),
        (
            _own("", "optim.Adam", "lr", 1, 2, ""),
            ({"lr": 1, "b": 1},),
            {},
            (({"lr": 2, "b": 1},), {}),
        ),
        (_own("", "optim.Adam", "lr", 1, 2, ""), ({"lr": 3},), {}, (({"lr": 3},), {})),
    ],
)
def test_our_number_takes_the_place_of_theirs_alone(
    entry: Own, args: Any, kwargs: Any, expected: Any
) -> None:
    module = recorder()
    home, name, function = entry.of(module)
    assert home in (module, module.optim) and hasattr(home, name)
    assert function(*args, **kwargs) == expected


def test_without_a_key_another_function_is_taken() -> None:
    assert _own("", "close", "", None, "other", "").of(recorder())[1:] == ("close", "other")


def test_a_defect_or_a_run_without_a_test_fails(capsys: pytest.CaptureFixture[str]) -> None:
    good = [["passed", "test_a", ""], ["own", "test_b", "why"]]
    assert pyro_suite._table({"valid_models": good}) == 0
    assert "| valid_models | 1 | 0 | 1 | 0 |" in capsys.readouterr().out
    assert pyro_suite._table({"valid_models": [*good, ["defect", "test_c", "E"]]}) == 1
    assert pyro_suite._table({"valid_models": good, "inference": []}) == 1


def test_a_folder_without_pyros_tests_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        pyro_suite.main([str(tmp_path)])
    assert "expected a checkout of Pyro" in capsys.readouterr().err
