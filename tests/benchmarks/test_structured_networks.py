"""The made-up graph and scene, the two networks, and the tables of what became of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.posterior import structured_networks as benchmark
from benchmarks.posterior._structured_networks_field import RadianceField
from benchmarks.posterior._structured_networks_graph import GraphNetwork, made_up_citations
from benchmarks.posterior._structured_networks_scene import cameras, made_up_discs, seen

SETTINGS = benchmark.SETTINGS


def test_the_graph_is_what_it_is_said_to_be() -> None:
    with fixed_seed(0):
        graph = made_up_citations(SETTINGS)
    edges, labels = graph.edges, graph.labels
    assert torch.equal(edges, edges.T) and not edges.diagonal().any()
    assert float(edges.sum(-1).mean()) == pytest.approx(SETTINGS["cited"], rel=0.1)
    within = edges[labels[:, None] == labels].sum() / edges.sum()
    assert float(within) == pytest.approx(SETTINGS["within"], abs=0.05)
    assert labels[graph.train].bincount().tolist() == [SETTINGS["labelled"]] * SETTINGS["classes"]
    parts = torch.cat([graph.train, graph.held_out, graph.test])
    assert torch.equal(parts.sort().values, torch.arange(SETTINGS["nodes"]))


def test_a_graph_convolution_is_a_weighted_mean_of_neighbours() -> None:
    with fixed_seed(1, torch.float64):
        graph = made_up_citations(SETTINGS | {"nodes": 30, "held_out": 0, "labelled": 2})
        network = GraphNetwork(graph, 3)
        degree = graph.edges.sum(-1) + 1

        def convolved(values: Tensor, i: int) -> Tensor:
            near = [i, *graph.edges[i].nonzero()[:, 0].tolist()]
            return sum(values[j] / (degree[i] * degree[j]).sqrt() for j in near)

        words = torch.stack([convolved(graph.words, i) for i in range(30)])
        words = (words - words.mean(0)) / words.std(0).clamp(min=1e-6)
        hidden = network.second(network.first(words).tanh())
        asked = torch.tensor([7, 2])
        expected = torch.stack([convolved(hidden, int(i)) for i in asked])
        torch.testing.assert_close(network(asked), expected)


@pytest.mark.long
def test_what_is_seen_is_the_integral() -> None:
    with fixed_seed(0, torch.float64):
        scene = made_up_discs(8, 6.0)
        rays = cameras(torch.linspace(0.0, 6.0, 5), SETTINGS)
        ends = torch.linspace(0.0, 2.5, 5001)
        places = rays[:, None, :2] + (ends[1:, None] - 0.5 * ends[1]) * rays[:, None, 2:]
        apart = (places[..., None, :] - scene.centres).norm(dim=-1)
        inside = (apart < scene.radii).to(rays)
        assert inside.sum(-1).max() == 2  # they lie over each other
        depth = scene.density * inside.sum(-1) * ends[1]
        colour = inside @ scene.colours / inside.sum(-1, keepdim=True).clamp(min=1)
        weight = (depth - depth.cumsum(-1)).exp() * (1 - depth.neg().exp())
        expected = (weight[..., None] * colour).sum(-2)
    torch.testing.assert_close(seen(scene, rays), expected, atol=2e-3, rtol=0)


def test_cameras_look_at_the_middle() -> None:
    rays = cameras(torch.tensor([0.3]), SETTINGS | {"pixels": 3})
    torch.testing.assert_close(rays[1, :2] + SETTINGS["distance"] * rays[1, 2:], torch.zeros(2))
    torch.testing.assert_close(rays[:, 2:].norm(dim=-1), torch.ones(3))


def test_an_even_fog_is_seen_as_such() -> None:
    network = RadianceField(SETTINGS)
    for parameter in network.layers[-1].parameters():
        torch.nn.init.zeros_(parameter)
    depth = 10 * math.log(2) * (SETTINGS["far"] - SETTINGS["near"])
    expected = torch.full((4, 3), 0.5 * (1 - math.exp(-depth)))
    torch.testing.assert_close(network(torch.randn(4, 4)), expected)


def test_rank_correlation() -> None:
    x = torch.tensor([0.1, 0.5, 0.2, 0.9])
    assert benchmark._rank_correlation(x, x.exp()) == pytest.approx(1)
    assert benchmark._rank_correlation(x, -x) == pytest.approx(-1)
    assert benchmark._rank_correlation(torch.zeros(4), x) is None


def _row(problem: str, method: str, **more: Any) -> dict[str, Any]:
    row = {"problem": problem, "method": method, "seed": 0, "latents": 9, "steps": 2}
    row |= {"cpu_seconds": 1.0, "log_density": -1.0, "accuracy": 0.5, "nll": 1.0, "ece": 0.1}
    for side in ("seen side", "unseen side"):
        row |= {f"PSNR, {side}": 20.0, f"log density, {side}": 1.0, f"coverage, {side}": 0.9}
        row |= {f"spread, {side}": 0.0, f"rank correlation, {side}": None}
    return row | more


def test_tables() -> None:
    rows = [_row("graph", "MAP"), _row("graph", "MAP", accuracy=0.7), _row("field", "MAP")]
    rows.append(_row("field", "implicit", **{"rank correlation, seen side": 0.25}))
    assert "0.600 ± 0.141" in benchmark.graph(rows)
    assert "-1.000 ± 0.000" in benchmark.table(rows)
    rows += [_row("graph", "mean-field", log_density=-1.5)]
    assert "| +0.500 ± 0.000 |" in benchmark.table(rows).splitlines()[2]
    told = benchmark.field(rows).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in told] == ["seen side"] * 2 + ["unseen side"] * 2
    assert " 0.25 |" in told[1] and "0.25" not in told[3]
