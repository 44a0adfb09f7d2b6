"""Pages: what a paged plan must keep to besides, because a page may be seen at several addresses.

A buffer that lies in several places gets addresses of its own, page by page. So its parts meet at page borders, and no
other buffer may live in its pages meanwhile: a device keeps two views of a page alike from step to step, not within.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from planc.byte_map import ByteMap
from planc.happens_before import HappensBefore
from planc.plan import Space
from planc.verify_memory import Piece, StepUses, Tenant, follows, tenants
from planc.verify_report import Report


def check_pages(report: Report, order: HappensBefore, uses: Sequence[StepUses]) -> None:
    """Report what is wrong with the pages of one program, whose accesses lie in `uses`."""
    if not report.plan.spaces.page_bytes:
        return
    scattered = set[tuple[int, int]]()
    for step, use in enumerate(uses):
        for pieces in (use.workspace, *(access.pieces for access in (*use.reads, *use.writes))):
            if len(pieces) > 1 and _places(report, pieces) > 1:
                scattered.update((piece.buffer, piece.extent) for piece in pieces)
                _check_borders(report, step, pieces)
    if scattered:
        _check_sharing(report, order, scattered)


def _shift(report: Report, piece: Piece) -> int:
    extent = report.plan.buffers[piece.buffer].extents[piece.extent]
    return extent.offset - extent.first


def _places(report: Report, pieces: Iterable[Piece]) -> int:
    return len({_shift(report, piece) for piece in pieces})


def _check_borders(report: Report, step: int, pieces: Sequence[Piece]) -> None:
    """Neighbouring pieces lie side by side, or one ends and the other begins at a page border."""
    page = report.plan.spaces.page_bytes
    for before, behind in pairwise(pieces):
        ends, begins = _shift(report, before) + before.stop, _shift(report, behind) + behind.start
        if ends != begins and (ends % page or begins % page):
            report.add(
                "page-border",
                f"{report.step(step)}: bytes [{before.start}, {behind.stop}) of {report.buffer(before.buffer)} end at "
                f"{ends} and go on at {begins}; wanted borders of pages of {page} bytes.",
                (step,),
                (before.buffer,),
            )


def _check_sharing(report: Report, order: HappensBefore, scattered: set[tuple[int, int]]) -> None:
    """Who shares a page with a scattered extent of another buffer follows it or is followed by it.

    In the order of birth, every page remembers those of its holders that nobody has followed yet.
    """
    page = report.plan.spaces.page_bytes
    found = sorted(tenants(report, Space.ARENA), key=lambda tenant: tenant.born)
    own = [(tenant.offset // page, -(-(tenant.offset + tenant.bytes) // page)) for tenant in found]
    mapped = bytearray(max(stop for _, stop in own))
    for tenant, (start, stop) in zip(found, own, strict=True):
        if (tenant.buffer, tenant.extent) in scattered:
            mapped[start:stop] = b"\1" * (stop - start)
    holders = ByteMap[tuple[int, ...]](len(mapped), (), lambda held: held)
    for number, (tenant, (start, stop)) in enumerate(zip(found, own, strict=True)):
        if mapped.find(1, start, stop) < 0:
            continue
        parts = holders.cut(start, stop)
        for part in range(parts.start, parts.stop):
            left = [old for old in holders.values[part] if not follows(order, found[old], tenant)]
            for old in left:
                other = found[old]
                aliased = not {(t.buffer, t.extent) for t in (tenant, other)}.isdisjoint(scattered)
                if aliased and other.buffer != tenant.buffer:
                    _report(report, other, tenant, page)
            holders.values[part] = (*left, number)


def _report(report: Report, old: Tenant, new: Tenant, page: int) -> None:
    report.add(
        "page-shared",
        f"{report.buffer(old.buffer)} at {old.offset} and {report.buffer(new.buffer)} at {new.offset} may be alive at "
        f"one time and share a page of {page} bytes, in which one of them has addresses of its own.",
        (() if new.born < 0 else (new.born,)),
        (old.buffer, new.buffer),
    )
