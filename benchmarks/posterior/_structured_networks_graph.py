"""A made-up citation graph, and a graph convolution that tells the classes of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

__all__ = ["Citations", "GraphNetwork", "made_up_citations", "nodes_model"]


@dataclass(frozen=True)
class Citations:
    """
    Papers that cite each other.

    :param torch.Tensor words: 1 for each word that a paper has, else 0, ``(nodes, words)``.
    :param torch.Tensor edges: 0 or 1, symmetric, ``(nodes, nodes)``.
    :param torch.Tensor labels: the class of each paper, ``(nodes,)``.
    :param torch.Tensor train: numbers of the labelled papers, equally many of each class.
    :param torch.Tensor held_out: numbers of papers that settings may be chosen by.
    :param torch.Tensor test: numbers of all others.
    """

    words: Tensor
    edges: Tensor
    labels: Tensor
    train: Tensor
    held_out: Tensor
    test: Tensor


def made_up_citations(sizes: dict[str, Any]) -> Citations:
    """
    A stochastic block model: papers of one class cite each other more, and share words.

    :param dict sizes: ``nodes``, ``classes``, ``words``, ``labelled`` of each class, ``held_out``;
        ``cited`` papers a paper in the mean, the share ``within`` of them of its own class;
        ``typical`` words of each class, and how likely a paper has a word that is ``typical`` or
        not, ``word_rates``.
    :returns: the graph.
    """
    count, classes = sizes["nodes"], sizes["classes"]
    labels = torch.randint(classes, (count,))
    same = labels[:, None] == labels
    own = sizes["cited"] * sizes["within"] * classes / count
    other = sizes["cited"] * (1 - sizes["within"]) * classes / (classes - 1) / count
    upper = torch.bernoulli(torch.where(same, own, other)).triu(1)
    typical = torch.zeros(classes, sizes["words"], dtype=torch.bool)
    for row in typical:
        row[torch.randperm(sizes["words"])[: sizes["typical"]]] = True
    often, seldom = sizes["word_rates"]
    words = torch.bernoulli(torch.where(typical[labels], often, seldom))
    order = torch.randperm(count)
    first = [order[labels[order] == k][: sizes["labelled"]] for k in range(classes)]
    train = torch.cat(first)
    rest = order[~torch.isin(order, train)]
    cut = sizes["held_out"]
    return Citations(words, upper + upper.T, labels, train, rest[:cut], rest[cut:])


class GraphNetwork(nn.Module):
    r"""
    Two graph convolutions: :math:`\hat A \tanh(\hat A X W_1 + b_1) W_2 + b_2`.

    Every paper's class depends on its neighbours' words, so the whole graph is evaluated at each
    call, whichever papers are asked for.

    :param Citations graph: its words and edges are kept as buffers, its labels are not.
    :param int width: of the hidden layer.
    """

    def __init__(self, graph: Citations, width: int) -> None:
        super().__init__()
        looped = graph.edges + torch.eye(len(graph.edges))
        scale = looped.sum(-1).rsqrt()
        adjacency = scale[:, None] * looped * scale
        words = adjacency @ graph.words
        words = (words - words.mean(0)) / words.std(0).clamp(min=1e-6)
        self.register_buffer("adjacency", adjacency)
        self.register_buffer("words", words)
        self.first = nn.Linear(words.shape[-1], width)
        self.second = nn.Linear(width, int(graph.labels.max()) + 1)

    def forward(self, nodes: Tensor) -> Tensor:
        """
        :param torch.Tensor nodes: numbers of papers, ``(N,)``.
        :returns: logits of their classes, ``(N, classes)``.
        """
        hidden = torch.tanh(self.first(self.words))
        logits: Tensor = self.adjacency @ self.second(hidden)
        return logits[nodes]


def nodes_model(network: Any) -> Callable[..., Any]:
    """
    :param network: a Bayesian graph network.
    :returns: a model of the labels of those papers whose numbers are given.
    """

    def model(nodes: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = network(nodes)
        with pyro.plate("nodes", len(nodes)):
            return pyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    return model
