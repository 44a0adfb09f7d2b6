"""Runs a task list on symbols: what a task writes is named by what it computes from what. Equal names, equal bits."""

from __future__ import annotations

from hashlib import blake2b

from planc.tasks import TaskList, Use


def _name(*of: object) -> str:
    return blake2b(repr(of).encode(), digest_size=12).hexdigest()


def reads_of_tasks(tasks: TaskList) -> list[tuple[str, ...]]:
    """For every task the names of what it finds in its arguments, in order."""
    held: dict[int, dict[tuple[int, int], str]] = {}

    def find(use: Use) -> str:
        piece = tasks.pieces[use.piece]
        parts = sorted(held.get(use.piece, {}).items())
        inside = [(start, stop, name) for (start, stop), name in parts if start < use.stop and use.start < stop]
        if not inside:
            assert piece.born < 0, f"piece {use.piece} is read before anything wrote it"
            return _name("given", piece.tensors, piece.start)
        return _name(use.start, use.stop, inside)

    found = []
    for task in tasks.tasks:
        reads = tuple(find(use) for use in task.reads)
        before = tuple(find(use) for use in task.writes) if task.accumulate else ()
        found.append(reads)
        for position, use in enumerate(task.writes):
            parts = held.setdefault(use.piece, {})
            for start, stop in [part for part in parts if use.start <= part[0] and part[1] <= use.stop]:
                del parts[start, stop]
            parts[use.start, use.stop] = _name(task.launch, task.start, task.stop, position, reads, before)
    return found
