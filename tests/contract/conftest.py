"""The suite's parameters: a test that asks for a guide, a model or an objective gets them all."""

from __future__ import annotations

from functools import partial

import pytest

from tests.contract.registry import GUIDES, MODELS, OBJECTIVES


@pytest.fixture(params=GUIDES)
def make_guide(request):
    """With what the objective needs of it, in a test that asks for both."""
    guide = GUIDES[request.param]
    if "make_objective" not in request.fixturenames:
        return guide
    return partial(guide, **request.getfixturevalue("make_objective").guide_options)


@pytest.fixture(params=MODELS)
def case(request):
    return MODELS[request.param]


@pytest.fixture(params=OBJECTIVES)
def make_objective(request):
    return OBJECTIVES[request.param]
