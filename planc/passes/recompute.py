"""Policy checkpoint-sqrt: recompute whole segments.

Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.

The n activations that the backward pass wants again and that can be made again are cut, in the order in which they were
written, into about sqrt(n) segments. The last of each segment, its checkpoint, stays; the others are given up after
their last forward use, and made again together before the backward pass reaches the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt

from planc.passes.base import Decisions, Problem, Rebuild
from planc.passes.recipes import Recipe, find_recipes


@dataclass(frozen=True, slots=True)
class CheckpointSqrt:
    """Give up all but every sqrt(n)-th activation. `recompute`: a key of recipes.RECOMPUTE."""

    recompute: str = "any"
    name: str = "recompute.CheckpointSqrt"
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()

    def run(self, problem: Problem, decisions: Decisions) -> Decisions:
        recipes = sorted(find_recipes(problem, self.recompute), key=lambda recipe: (recipe.tasks[-1], recipe.piece))
        length = max(1, isqrt(len(recipes)))
        before: dict[int, int] = {}
        for first in range(0, len(recipes), length):
            given_up = recipes[first : first + length][:-1]
            reached = min((recipe.needed_by for recipe in given_up), default=0)
            for recipe in given_up:
                before[recipe.piece] = reached if reached > recipe.leaves else recipe.needed_by
        return replace(decisions, rebuilds=ancestors_first(recipes, before))


def ancestors_first(recipes: Sequence[Recipe], before: dict[int, int]) -> tuple[Rebuild, ...]:
    """Rebuilds of the pieces in `before` (piece -> task), in the order they run, moved forward where others need them.

    `recipes`: by their last tasks, so that what a recipe reads comes before it.
    """
    moved = dict(before)
    leaves = {recipe.piece: recipe.leaves for recipe in recipes}
    for recipe in reversed(recipes):
        if recipe.piece not in moved:
            continue
        for piece in recipe.ancestors:
            if piece in moved and moved[recipe.piece] > leaves[piece]:
                moved[piece] = min(moved[piece], moved[recipe.piece])
    found = [
        Rebuild(recipe.piece, recipe.leaves, moved[recipe.piece], recipe.needed_by, recipe.tasks)
        for recipe in recipes
        if recipe.piece in moved
    ]
    return tuple(sorted(found, key=lambda rebuild: rebuild.before))  # stable: ancestors stay first
