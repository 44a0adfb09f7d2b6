"""Rows of the operator table: einsum."""

from __future__ import annotations

from typing import Any

from case import Case, Shape


def _einsum(form: str, equation: str, inputs: dict[str, Shape], weights: dict[str, Shape] | None = None) -> Case:
    """Operands are taken in alphabetical order, so that a weight may come first."""
    order = tuple(sorted({**inputs, **(weights or {})}))

    def torch(t: dict[str, Any]) -> Any:
        from torch import einsum

        return einsum(equation, *(t[name] for name in order))

    return Case(
        f"einsum-{form}",
        "Einsum",
        12,
        inputs,
        torch,
        weights=weights or {},
        attrs={"equation": equation},
        order=order,
    )


CASES: tuple[Case, ...] = (
    _einsum("product", "ij,jk->ik", {"a": (4, 3)}, {"b": (3, 5)}),
    _einsum("implicit-result", "bj,jk", {"a": (4, 3)}, {"b": (3, 5)}),
    _einsum("scores", "bqhd,bkhd->bhqk", {"a": (3, 2, 2, 4), "b": (3, 5, 2, 4)}),
    _einsum("values", "bhqk,bkhd->bqhd", {"a": (3, 2, 4, 5), "b": (3, 5, 2, 3)}),
    _einsum("split-heads", "bsd,dhk->bshk", {"a": (3, 4, 6)}, {"b": (6, 2, 3)}),
    _einsum("merge-heads", "bshk,hkd->bsd", {"a": (3, 4, 2, 3)}, {"b": (2, 3, 6)}),
    _einsum("two-letters-summed-apart", "bhsk,khd->bsd", {"a": (3, 2, 4, 3)}, {"b": (3, 2, 5)}),
    _einsum("weight-first", "kd,bsd->bsk", {"b": (3, 4, 6)}, {"a": (5, 6)}),
    _einsum("transposed-result", "bsd,kd->bks", {"a": (3, 4, 6)}, {"b": (5, 6)}),
    _einsum("ellipsis", "...ij,...jk->...ik", {"a": (3, 2, 4, 5), "b": (3, 2, 5, 2)}),
    _einsum("ellipsis-implicit", "...ij,jk", {"a": (3, 2, 4, 5)}, {"b": (5, 2)}),
    _einsum("ellipsis-broadcasts", "...ij,...jk->...ik", {"a": (3, 1, 4, 5), "b": (3, 2, 5, 2)}),
    _einsum("ellipsis-of-other-rank", "b...d,...d->b...", {"a": (3, 2, 4, 5)}, {"b": (4, 5)}),
    _einsum("outer", "bi,bj->bij", {"a": (4, 3), "b": (4, 2)}),
    _einsum("elementwise", "bij,bij->bij", {"a": (4, 3, 2), "b": (4, 3, 2)}),
    _einsum("dot", "bi,bi->b", {"a": (4, 3), "b": (4, 3)}),
    _einsum("number", "bi,bi->", {"a": (4, 3), "b": (4, 3)}),
    _einsum("gram", "bi,bj->ij", {"a": (4, 3), "b": (4, 2)}),
    _einsum("summed-alone", "bij,jk->bk", {"a": (4, 3, 2)}, {"b": (2, 5)}),
    _einsum("summed-alone-in-both", "bij,bkl->bik", {"a": (4, 3, 2), "b": (4, 2, 3)}),
    _einsum("batch-summed-alone", "bi,ij->j", {"a": (4, 3)}, {"b": (3, 2)}),
    _einsum("batch-behind", "bi,ij->jb", {"a": (4, 3)}, {"b": (3, 2)}),
    _einsum("batch-of-one-operand-inside", "bi,jb->ij", {"a": (4, 3)}, {"b": (2, 4)}),
    _einsum("batches-apart", "bi,ci->bc", {"a": (4, 3), "b": (4, 3)}),
    _einsum("parameter-for-the-batch", "bi,bij->bj", {"a": (4, 3)}, {"b": (4, 3, 2)}),
)
