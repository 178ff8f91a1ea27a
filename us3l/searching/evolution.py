"""Greedy slimming, refined by evolution: which sub-networks are scored, and in which order.

All draws come from the seed, and everything else from the scores: a search that is repeated with the scores that it
had goes the same way, which is how it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from us3l.searching.search_space import Genes, Space

PARENTS = 8
STALE = 60  # children in a row that are known already


class Evolution:
    """A search among the sub-networks of a space.

    Args:
        space: What to choose from.
        score: How good a sub-network is; called once for each.
        excess: What it costs over the budget: 1 is just within it.
        candidates: How many may be scored.
        seed: Of all draws.
    """

    def __init__(
        self,
        space: Space,
        score: Callable[[Genes], float],
        excess: Callable[[Genes], float],
        candidates: int,
        seed: int = 0,
    ) -> None:
        self.space, self.excess, self.candidates = space, excess, candidates
        self.random = Random(f"search/{seed}")
        self.scores: dict[Genes, float] = {}
        self._score = score

    def score(self, genes: Genes) -> float:
        if genes not in self.scores:
            self.scores[genes] = self._score(genes)
        return self.scores[genes]

    @property
    def best(self) -> list[Genes]:
        """Those within the budget, the best first."""
        fitting = [genes for genes in self.scores if self.excess(genes) <= 1]
        return sorted(fitting, key=lambda genes: self.scores[genes], reverse=True)

    def run(self) -> None:
        """Slim the full network down to the budget; then vary the best."""
        self.slim(self.candidates // 2)
        self.evolve()

    def slim(self, most: int) -> Genes:
        """From the full network, lower what costs least of the score for what it saves, until the budget is kept.

        Args:
            most: Sub-networks to score, about: the fewer, the larger the steps.
        """
        genes = self.space.full
        places = [place for place, choice in enumerate(self.space.choices) if len(choice) > 1]
        step = (self.excess(genes) - 1) / max(1, most // len(places))
        while (above := self.excess(genes)) > 1:
            options = [option for place in places if (option := self.lowered(genes, place, above - step))]
            base = self.score(genes)
            genes = min(options, key=lambda option: (base - self.score(option)) / (above - self.excess(option) + 1e-9))
        self.score(genes)
        return genes

    def lowered(self, genes: Genes, place: int, target: float) -> Genes | None:
        """With one gene lowered until the costs are at a target, or as far as it goes."""
        found = None
        while (lower := self.space.moved(genes, place, -1)) is not None:
            genes = found = lower
            if self.excess(genes) <= target:
                break
        return found

    def evolve(self) -> None:
        """Vary the best ones until enough are scored, or nothing new is found."""
        known = 0
        while len(self.scores) < self.candidates and known < STALE:
            child = self.fitted(self.child())
            known = known + 1 if child in self.scores else 0
            self.score(child)

    def child(self) -> Genes:
        parents = self.best[:PARENTS]
        if len(parents) < 2 or self.random.random() < 0.1:
            return self.space.drawn(self.random)
        if self.random.random() < 0.5:
            return self.space.mutated(self.random.choice(parents), self.random)
        one, other = self.random.sample(parents, 2)
        return self.space.crossed(one, other, self.random)

    def fitted(self, genes: Genes) -> Genes:
        """The same, but within the budget, and with nothing of it left that a stage could use."""
        while self.excess(genes) > 1:
            lower = [self.space.moved(genes, place, -1) for place in range(len(genes))]
            genes = self.random.choice([option for option in lower if option is not None])
        places = list(range(len(genes)))
        self.random.shuffle(places)
        for place in places:
            while (higher := self.space.moved(genes, place, 1)) is not None and self.excess(higher) <= 1:
                genes = higher
        return genes
