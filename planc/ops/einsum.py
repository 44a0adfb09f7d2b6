"""Einsum of two operands: a product whose axes are named by letters.

Before the product each operand is simplified: an axis of size 1 that broadcasts is dropped (a view), and an axis that
neither the other operand nor the result has is summed away. Every letter is then in at least two of the three terms,
and the gradients are einsums of the same kind:

    y = [A,B->Y](a, b)    da = [Y,B->A](dy, b)    db = [Y,A->B](dy, a)

A product is per sample when the samples lie along one letter, in front of every term that has it; it sums over samples
when the result alone lacks that letter. Launches, both with the attribute `equation`:

    Einsum(a, b) -> y                    EinsumSum(a, b) -> y, added up over samples
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from string import ascii_letters

from planc.graph import Attrs, Node, TensorSpec
from planc.ops.alignment import emit_aligned, sum_to
from planc.ops.reading import node_error, present, raw_spec, raw_text, text
from planc.ops.spec import BatchRule, Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, Recompute

Specs = tuple[TensorSpec | None, ...]

_REMEDY = "Write it as Transpose, ReduceSum and MatMul."


def _read(raw: RawNode) -> Reading:
    """Ellipses become letters, an implicit result explicit: the equation of the normal form is `ab,bc->ac`."""
    equation = raw_text(raw, "equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(raw.inputs) != 2 or len(terms) != 2:
        raise raw.error(f"equation {equation!r} with {len(raw.inputs)} operand(s); planc multiplies two.", _REMEDY)
    free = [letter for letter in ascii_letters if letter not in equation]
    ranks = [len(raw_spec(raw, position).shape) for position in range(2)]
    widths = [rank - len(term.replace("...", "")) for rank, term in zip(ranks, terms, strict=True)]
    ellipsis = "".join(free[: max(0, *(w for w, term in zip(widths, terms, strict=True) if "..." in term), 0)])
    spelled = [
        term.replace("...", ellipsis[len(ellipsis) - max(width, 0) :], 1)
        for term, width in zip(terms, widths, strict=True)
    ]
    if not arrow:
        once = Counter("".join(terms).replace(".", ""))
        result = "..." * ("..." in left) + "".join(sorted(letter for letter, count in once.items() if count == 1))
    spelled.append(result.replace("...", ellipsis, 1))
    for term, rank in zip(spelled, (*ranks, len(spelled[2])), strict=True):
        if not all(letter in ascii_letters for letter in term) or len(term) != rank:
            raise raw.error(f"equation {equation!r} does not name the axes of operands of {ranks} axes.")
        if len(set(term)) != len(term):
            raise raw.error(f"equation {equation!r} has a letter twice in one term, a diagonal.", _REMEDY)
    if unknown := set(spelled[2]) - set(spelled[0] + spelled[1]):
        raise raw.error(f"equation {equation!r}: the result's {min(unknown)!r} is in no operand.")
    return Reading(raw.inputs, {"equation": f"{spelled[0]},{spelled[1]}->{spelled[2]}"})


def terms_of(attrs: Attrs) -> tuple[str, str, str]:
    """The three terms of the attribute `equation`."""
    left, _, result = text(attrs, "equation").partition("->")
    first, _, second = left.partition(",")
    return first, second, result


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand on its way into the product.

    full:   as given, without the axes that broadcast.
    summed: `full` with size 1 along the axes that are summed away.
    term, spec: the letters that are left, and their axes.
    """

    full: TensorSpec
    summed: TensorSpec
    term: str
    spec: TensorSpec

    @classmethod
    def of(cls, term: str, spec: TensorSpec, others: str, sizes: dict[str, int]) -> _Operand:
        axes = [(letter, size) for letter, size in zip(term, spec.shape, strict=True) if size == sizes[letter]]
        kept = "".join(letter for letter, _ in axes if letter in others)
        full = TensorSpec(tuple(size for _, size in axes), spec.dtype, spec.rows)
        rows = spec.rows if term[:1] == kept[:1] else 0
        ones = tuple(size if letter in kept else 1 for letter, size in axes)
        return cls(full, TensorSpec(ones, spec.dtype, rows), kept,
                   TensorSpec(tuple(sizes[letter] for letter in kept), spec.dtype, rows))  # fmt: skip


def _rule(terms: tuple[str, str, str], specs: tuple[TensorSpec, TensorSpec], rows: int | None) -> BatchRule:
    """How a product treats the batch; `rows` of its result, None = whatever it may have."""
    fronts = {term[0] for term, spec in zip(terms, specs, strict=False) if spec.rows}
    found = {spec.rows for term, spec in zip(terms, specs, strict=False) if fronts & set(term)}
    apart = all(term[0] in fronts for term in terms if fronts & set(term))
    if len(fronts) != 1 or len(found) != 1 or 0 in found or not apart:
        return BatchRule.WHOLE
    in_front = terms[2][:1] in fronts
    if in_front != bool(in_front if rows is None else rows):
        return BatchRule.WHOLE
    return BatchRule.PER_SAMPLE if in_front else BatchRule.SUM


@dataclass(frozen=True, slots=True)
class _Product:
    """A node's product: its operands, its result's letters and spec."""

    operands: tuple[_Operand, _Operand]
    term: str
    result: TensorSpec

    @classmethod
    def of(cls, node: Node, specs: Specs) -> _Product:
        """
        Raises:
            ModelError: a letter stands for axes of different sizes.
        """
        *terms, result = terms_of(node.attrs)
        given = [present(spec) for spec in specs]
        sizes: dict[str, int] = {}
        for term, spec in zip(terms, given, strict=True):
            for letter, size in zip(term, spec.shape, strict=True):
                sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
        for term, spec in zip(terms, given, strict=True):
            for axis, (letter, size) in enumerate(zip(term, spec.shape, strict=True)):
                if size != sizes[letter] and (size != 1 or (axis == 0 and spec.rows)):
                    raise node_error(node, f"{letter!r} stands for sizes {size} and {sizes[letter]}; wanted one size.")
        first, second = (
            _Operand.of(term, spec, other + result, sizes)
            for term, spec, other in zip(terms, given, reversed(terms), strict=True)
        )
        rule = _rule((first.term, second.term, result), (first.spec, second.spec), None)
        rows = (first.spec.rows or second.spec.rows) if rule is BatchRule.PER_SAMPLE else 0
        spec = TensorSpec(tuple(sizes[letter] for letter in result), given[0].dtype, rows)
        return cls((first, second), result, spec)


def _product(b: Builder, node: Node) -> _Product:
    return _Product.of(node, tuple(b.spec(b.tensor(name)) for name in node.inputs))


def _infer(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    return (_Product.of(node, specs).result,)


def _emit(b: Builder, terms: tuple[str, str, str], operands: tuple[int, int], result: TensorSpec) -> int:
    rule = _rule(terms, (b.spec(operands[0]), b.spec(operands[1])), result.rows)
    equation = {"equation": f"{terms[0]},{terms[1]}->{terms[2]}"}
    op = "EinsumSum" if rule is BatchRule.SUM else "Einsum"
    (made,) = b.emit(op, operands, (result,), equation, rule=rule)
    return made


def _lower(b: Builder, node: Node) -> tuple[int, ...]:
    """Saves the simplified operands."""
    product = _product(b, node)
    given = (b.view(b.tensor(name), operand.full) for name, operand in zip(node.inputs, product.operands, strict=True))
    first, second = (
        b.view(sum_to(b, tensor, operand.summed), operand.spec)
        for tensor, operand in zip(given, product.operands, strict=True)
    )
    terms = (product.operands[0].term, product.operands[1].term, product.term)
    b.define(node.outputs[0], _emit(b, terms, (first, second), product.result))
    return (first, second)


def _gradient(b: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    (dy,) = grads
    if dy is None:
        return (None, None)
    product = _product(b, node)
    found: list[int | None] = []
    for name, own, other, tensor in zip(
        node.inputs, product.operands, reversed(product.operands), reversed(saved), strict=True
    ):
        if not b.wants(name):
            found.append(None)
            continue
        gradient = _emit(b, (product.term, other.term, own.term), (dy, tensor), own.spec)
        gradient = b.view(gradient, own.summed)
        if own.summed != own.full:
            gradient = emit_aligned(b, "Expand", (gradient,), own.full, {"count": 1})
        found.append(b.view(gradient, b.spec(b.tensor(name))))
    return tuple(found)


def _flops(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """A multiplication and an addition for every combination of indices."""
    first, second, _ = terms_of(attrs)
    sizes = {
        letter: size
        for term, spec in zip((first, second), inputs, strict=True)
        for letter, size in zip(term, spec.shape, strict=True)
    }
    return 2 * prod(sizes.values())


OPS: dict[str, OpSpec] = {"Einsum": OpSpec(_read, _infer, _lower, _gradient)}

LAUNCHES: dict[str, LaunchSpec] = {
    "Einsum": LaunchSpec(flops=_flops, recompute=Recompute.COSTLY, matrix=True),
    "EinsumSum": LaunchSpec(sums=True, flops=_flops, recompute=Recompute.NEVER, matrix=True),
}
