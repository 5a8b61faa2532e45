"""
Scales, masks, sizes of plates and rows enter every term of every objective, and draws are new.

Mutants of the package that forget one of them must die here, see ``test_mutants.py``. Most tests
compare two evaluations with the same seed, which every objective must answer in the same way.
"""

from __future__ import annotations

import copy
from functools import partial

import pyro
import pytest
import torch
from pyro import poutine

from pyro_implicit import MixtureDensityGuide, PosteriorPredictiveLoss
from pyro_implicit.exceptions import GuideError, SiteError
from tests.contract.registry import (
    OBJECTIVES,
    ROW_GUIDES,
    ROW_MODELS,
    ROWS,
    HandWritten,
)

SEED = 5


def terms(objective, model, guide, *args, **kwargs):
    """From a copy, with the same noise in every call."""
    pyro.set_rng_seed(SEED)
    found = copy.deepcopy(objective).terms(model, guide, *args, **kwargs)
    return {name: value.detach() for name, value in found.items()}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-4, msg=name)


def build(make_row_guide, row_case, size=ROWS):
    """Model and guide for a plate of ``size`` rows, with the same parameters each time."""
    pyro.set_rng_seed(SEED)
    model = row_case.make(size=size)
    guide = make_row_guide(model)
    guide(*row_case.data(), torch.arange(ROWS))
    return model, guide


def told(objective, whole):
    """The terms that cannot be 0: all but those that the estimate of the KL divergence replaces."""
    replaced = {"log_prior", "entropy"} if replaces_kl(objective) else set()
    return [term for name, term in whole.items() if name not in replaced]


@pytest.fixture(autouse=True)
def refused(request):
    """
    Skips, having seen the refusal, where an objective does not know guides with a law for each row.
    """
    asked = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    objective = asked.get("make_objective")
    if objective is not None and objective.whole:
        pytest.skip("sees rows together; see test_draws_of_the_whole_posterior_are_of_weight_1")
    conditional = asked.get("make_row_guide", ROW_GUIDES["conditional"])
    while isinstance(conditional, partial):
        conditional = conditional.func
    if objective is None or conditional is HandWritten:
        return
    gauss_newton = getattr(objective(), "proposal", None) == "gauss-newton"
    if not (gauss_newton or objective.draws_prior):
        return
    model, guide = build(
        partial(ROW_GUIDES["conditional"], **objective.guide_options), ROW_MODELS["rows"]
    )
    error, message = (GuideError, "is conditional") if gauss_newton else (SiteError, "prior draws")
    with pytest.raises(error, match=message):
        objective().terms(model, guide, *ROW_MODELS["rows"].data())
    pytest.skip("refused, as it should be")


def by_rows(objective):
    """Whether it gives each row its own entropy; others refuse weights that differ."""
    return not (getattr(objective, "joint", False) or replaces_kl(objective))


def replaces_kl(objective):
    """Whether its estimate stands for prior and entropy together."""
    return getattr(objective, "replaces", "entropy") == "kl"


WHOLE = [name for name, made in OBJECTIVES.items() if made.whole]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", ROW_GUIDES)
def test_draws_of_the_whole_posterior_are_of_weight_1(name, kind):
    """Objectives that compare these take the rows of a plate together, or refuse them."""
    make_objective, row_case = OBJECTIVES[name], ROW_MODELS["positive rows"]
    make_row_guide = partial(ROW_GUIDES[kind], **make_objective.guide_options)
    model, guide = build(make_row_guide, row_case)
    objective, data = make_objective(), (*row_case.data(), torch.arange(ROWS))
    assert all(term.isfinite() for term in terms(objective, model, guide, *data).values())
    scaled = [poutine.scale(program, scale=3.0) for program in (model, guide)]
    with pytest.raises(SiteError, match="has weight 3, and .* compares draws of the whole"):
        terms(objective, *scaled, *data)
    with pytest.raises(SiteError, match="has weight 3, and .* compares draws of the whole"):
        terms(objective, *build(make_row_guide, row_case, size=3 * ROWS), *data)
    some = torch.arange(ROWS) < 2
    masked = [poutine.mask(program, mask=some) for program in (model, guide)]
    with pytest.raises(SiteError, match="scale or mask that differs between its entries"):
        terms(objective, *masked, *data)


@pytest.mark.parametrize("scale", [0.25, torch.tensor(3.0)], ids=["number", "tensor"])
def test_a_scale_multiplies_every_term(make_row_guide, make_objective, row_case, scale):
    if make_objective.together:
        pytest.skip("the logarithm of a mean of powers of the weights")
    model, guide = build(make_row_guide, row_case)
    objective, data = make_objective(), row_case.data()
    scaled = [poutine.scale(program, scale=scale) for program in (model, guide)]
    whole = terms(objective, model, guide, *data)
    assert all(abs(float(term)) > 1e-3 for term in told(objective, whole))
    expected = {name: scale * term for name, term in whole.items()}
    assert_close(terms(objective, *scaled, *data), expected)


def test_the_size_of_the_plate_multiplies_every_term(make_row_guide, make_objective, row_case):
    objective, data = make_objective(), (*row_case.data(), torch.arange(ROWS))
    whole = terms(objective, *build(make_row_guide, row_case), *data)
    more = terms(objective, *build(make_row_guide, row_case, size=3 * ROWS), *data)
    assert_close(more, {name: 3 * term for name, term in whole.items()})


def test_rows_behind_a_mask_count_in_no_term(make_row_guide, make_objective, row_case):
    model, guide = build(make_row_guide, row_case)
    objective, data = make_objective(), row_case.data()
    rows = torch.arange(ROWS) < 2
    parts = [
        [poutine.mask(program, mask=mask) for program in (model, guide)] for mask in (rows, ~rows)
    ]
    if not by_rows(objective):
        with pytest.raises(SiteError, match="scale or mask that differs between its entries"):
            terms(objective, *parts[0], *data)
        return
    some, others = (terms(objective, *part, *data) for part in parts)
    assert all(abs(float(term)) > 1e-3 for part in (some, others) for term in part.values())
    whole = terms(objective, model, guide, *data)
    assert_close({name: some[name] + others[name] for name in some}, whole)


def test_behind_a_mask_of_all_rows_nothing_is_left(make_row_guide, make_objective, row_case):
    model, guide = build(make_row_guide, row_case)
    masked = [poutine.mask(program, mask=torch.tensor(False)) for program in (model, guide)]
    found = terms(make_objective(), *masked, *row_case.data())
    assert_close(found, {name: torch.zeros_like(term) for name, term in found.items()})


@pytest.mark.filterwarnings("ignore:latent site 'level' is masked")  # as it is told to be
def test_weights_of_a_latent_in_the_model_enter_its_prior_alone(make_row_guide, make_objective):
    """What stands around one site only: a scale there must not reach another term."""
    if make_objective.together:
        pytest.skip("all terms are within one logarithm")
    row_case = ROW_MODELS["rows"]
    model, guide = build(make_row_guide, row_case)
    objective, data = make_objective(), row_case.data()
    if replaces_kl(objective):
        with pytest.raises(SiteError, match="has weight 4 in the model"):
            terms(objective, _Weighed(model, 4.0, None), guide, *data)
        return
    whole = terms(objective, model, guide, *data)
    for scale, mask, factor in ((4.0, None, 4.0), (1.0, torch.tensor(False), 0.0)):
        found = terms(objective, _Weighed(model, scale, mask), guide, *data)
        assert_close(found, whole | {"log_prior": factor * whole["log_prior"]})


class _Weighed(poutine.messenger.Messenger):
    """A model with a scale and a mask at site ``level``."""

    def __init__(self, model, scale, mask):
        super().__init__()
        self.model, self.scale, self.mask = model, scale, mask

    def __call__(self, *args):
        with self:
            return self.model(*args)

    def _pyro_sample(self, msg):
        if msg["name"] == "level":
            msg["scale"] = msg["scale"] * self.scale
            msg["mask"] = self.mask if msg["mask"] is None else msg["mask"] & self.mask


def noises(objective, model, guide, *data):
    """What enters the guide's generator in one evaluation, by row."""
    seen = []
    trace = poutine.trace(guide).get_trace(*data)
    node = next(n for n in trace.nodes.values() if "implicit_noise" in n.get("infer", {}))
    generator = node["fn"].generator
    generator = getattr(generator, "inner", generator)
    hook = generator.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    terms(objective, model, guide, *data)
    hook.remove()
    entries = node["fn"].generator.noise_dim
    return torch.cat([z[..., :entries].reshape(-1, entries) for z in seen])


def test_every_draw_has_noise_of_its_own(make_row_guide, make_objective, row_case):
    model, guide = build(make_row_guide, row_case)
    objective = make_objective(max_plate_nesting=1)
    found = noises(objective, model, guide, *row_case.data())
    new = getattr(objective, "num_samples", 0)  # those that a joint objective draws besides
    assert len(found.unique(dim=0)) >= (objective.num_particles + new) * ROWS


@pytest.mark.parametrize("form", ["per_datum", "expected", "per_batch"])
def test_every_predictive_loss_has_the_weight_of_all_rows(form):
    row_case, whole = ROW_MODELS["rows"], []
    for size, scale in ((ROWS, 1.0), (3 * ROWS, 1.0), (ROWS, 3.0)):
        built = build(ROW_GUIDES["conditional"], row_case, size=size)
        scaled = [poutine.scale(program, scale=scale) for program in built]
        objective = PosteriorPredictiveLoss(3, form=form)
        whole.append(terms(objective, *scaled, *row_case.data(), torch.arange(ROWS)))
    assert_close(whole[1], {name: 3 * term for name, term in whole[0].items()})
    assert_close(whole[2], whole[1])


@pytest.mark.parametrize("create_plates", [False, True])
def test_a_guide_looks_at_the_rows_that_its_model_chooses(make_objective, create_plates):
    x, y = ROW_MODELS["rows"].data()
    model = ROW_MODELS["rows"].make(shown=2)
    options = {"create_plates": model.plate if create_plates else None}
    guide = ROW_GUIDES["conditional"](model, **options, **make_objective.guide_options)
    guide(x, y)
    traces = {"guide": [], "model": []}

    def recorded(name, program):
        def run(*args):
            trace = poutine.trace(program).get_trace(*args)
            traces[name].append(trace)
            return trace.nodes["_RETURN"]["value"]

        return run

    terms(make_objective(), recorded("model", model), recorded("guide", guide), x, y)
    for theirs, mine in zip(traces["model"], traces["guide"], strict=False):
        rows = mine.nodes["data"]["value"]
        assert torch.equal(theirs.nodes["data"]["value"], rows)
        node = next(n for n in mine.nodes.values() if "implicit_noise" in n.get("infer", {}))
        assert torch.equal(node["fn"].generator.context.reshape(2, 2), x[rows])


@pytest.mark.parametrize("name", ["posterior predictive", "posterior predictive, expected"])
def test_weights_of_a_mixture_learn(name):
    """The one gradient that goes by the weights of the draws, whose value is 0."""
    row_case = ROW_MODELS["rows"]
    model, data = row_case.make(), row_case.data()
    guide = MixtureDensityGuide(model, num_components=2).setup(*data)
    OBJECTIVES[name]().loss_and_grads(model, guide, *data)
    for parameter in guide.parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0


def test_the_mean_over_draws_is_a_mean():
    """Of draws that are all the same it is that of one."""
    row_case = ROW_MODELS["rows"]
    model, data = row_case.make(), row_case.data()

    def constant(*args):
        with model.plate(*args):
            zeros = torch.zeros(len(args[0]), 2)
            pyro.sample("level", pyro.distributions.Delta(zeros, event_dim=1))

    for form in ("per_datum", "expected", "per_batch"):
        for vectorize_particles in (False, True):
            values = [
                terms(
                    PosteriorPredictiveLoss(
                        count,
                        form=form,
                        prior_weight=0.5,
                        vectorize_particles=vectorize_particles,
                    ),
                    model,
                    constant,
                    *data,
                )
                for count in (1, 4)
            ]
            assert_close(*values)
