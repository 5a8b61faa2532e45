"""Fits of several threads."""

from __future__ import annotations

import os
import threading
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.exceptions import StateError
from pyro_implicit.training.fitting.one_thread import one_thread


def test_another_thread_is_refused_while_one_fits_and_not_after_it() -> None:
    found: list[Any] = []

    def enter() -> None:
        try:
            with one_thread("fit"):
                found.append("in")
        except StateError as error:
            found.append(str(error))

    for within in (True, False):
        thread = threading.Thread(target=enter)
        if within:
            with one_thread("fit"), one_thread("fit"):  # a fit within a fit
                thread.start()
                thread.join()
        else:
            thread.start()
            thread.join()
    assert found[0].startswith("fit was called while another thread is in it")
    assert found[1] == "in"


def test_a_fit_in_another_thread_is_refused_by_name() -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w, 1.0), obs=torch.tensor(1.0))

    errors: list[Exception] = []

    def within() -> float:
        def other() -> None:
            try:
                fit(model, HyperNetworkGuide(model, init_from=None), num_steps=1, progress=False)
            except StateError as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return 0.0

    guide = HyperNetworkGuide(model, init_from=None)
    fit(model, guide, num_steps=2, validation=within, progress=False)
    assert errors and "Fit one after the other" in str(errors[0])
    with pytest.raises(RuntimeError), one_thread("fit"):
        raise RuntimeError
    with one_thread("fit"):
        pass


def test_a_process_that_was_forked_meanwhile_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def enter() -> None:
        with one_thread("fit"):
            found.append("in")

    with one_thread("fit"):  # of another thread, which the child does not have
        monkeypatch.setattr(os, "getpid", lambda: -1)
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert found == ["in"]
