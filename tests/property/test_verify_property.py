"""The verifier against brute force: small plans are run in every timing there is, byte by byte.

The brute force knows nothing of lives, versions in order or happens-before. It has memory, in which a step's writes are
torn from its start to its end; a plan is wrong if in some timing a step starts on anything but the very bytes it asks
for, or something is written that a running step still reads or writes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from verify_plans import Draft, bare_model

from planc.plan import Access, Buffer, BufferKind, Extent, Lane, Plan, Space, Step, StepKind
from planc.verify import verify

SIZE = 64
PLACES = 3
"""Buffers are of one size and lie in one of so many places, so that most of them share theirs."""


@dataclass(frozen=True)
class _Token:
    """What a place holds: a version of a buffer."""

    buffer: int
    version: int


_Place = tuple[Space, int]
_Memory = frozenset[tuple[_Place, _Token]]
_State = tuple[tuple[int, ...], frozenset[int], _Memory]
"""How many steps of each lane have started; which run; what lies where (torn and unwritten places are left out)."""


class _Machine:
    """All timings of a plan's training program."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps = plan.train.steps
        self.lanes = [[step.id for step in self.steps if step.lane is lane] for lane in Lane]
        self.origin = self._origins()

    def _origins(self) -> Mapping[int, int]:
        """Host buffer -> the buffer it is a copy of."""
        copies = [step for step in self.steps if step.kind is StepKind.OFFLOAD]
        return {step.writes[0].buffer: step.reads[0].buffer for step in copies}

    def place(self, access: Access, step: int) -> _Place:
        buffer: Buffer = self.plan.buffers[access.buffer]
        born = [extent for extent in buffer.extents if extent.born is None or extent.born <= step]
        return buffer.space, born[-1].offset

    def token(self, access: Access) -> _Token:
        return _Token(self.origin.get(access.buffer, access.buffer), access.version)

    def goes_wrong(self) -> bool:
        """Whether any timing does: a search over all states that starts and ends of steps lead to."""
        start: _State = ((0,) * len(self.lanes), frozenset(), frozenset())
        seen, todo = {start}, [start]
        while todo:
            for following in self._following(todo.pop()):
                if following is None:
                    return True
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return False

    def _following(self, state: _State) -> Iterator[_State | None]:
        """The states one start or end later; None where something goes wrong."""
        started, running, memory = state
        ended = {s for lane, count in zip(self.lanes, started, strict=True) for s in lane[:count]} - running
        for number in running:
            writes = {(self.place(access, number), self.token(access)) for access in self.steps[number].writes}
            yield started, running - {number}, memory | writes
        for lane, (steps, count) in enumerate(zip(self.lanes, started, strict=True)):
            if count == len(steps) or (count and steps[count - 1] in running):
                continue
            step = self.steps[steps[count]]
            if not ended.issuperset(step.waits):
                continue
            after = (*started[:lane], count + 1, *started[lane + 1 :])
            yield self._start(step, after, running, memory)

    def _start(self, step: Step, started: tuple[int, ...], running: frozenset[int], memory: _Memory) -> _State | None:
        wanted = {(self.place(access, step.id), self.token(access)) for access in step.reads}
        if not wanted <= memory:
            return None
        written = {self.place(access, step.id) for access in step.writes}
        if any(place in written and token.buffer != step.writes[0].buffer for place, token in wanted):
            return None  # it would overwrite what it reads, and does not know
        for other in running:
            rest = self.steps[other]
            if written & {self.place(access, other) for access in (*rest.reads, *rest.writes)}:
                return None
        kept = frozenset((place, token) for place, token in memory if place not in written)
        return started, running | {step.id}, kept


class _Story:
    """A small program as it grows: launches that read earlier values, some in place; one value leaves and returns.

    Every value that is made is read in the end, so that nothing the verifier finds is without consequence.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.draft = Draft(1)
        self.version: dict[int, int] = {}
        self.unread = set[int]()
        self.traveller: int | None = None
        self.host: int | None = None
        self.back: int | None = None
        self.returns = chance.random() < 0.7
        """Else the value that leaves may be overwritten behind its copy."""

    def tell(self) -> Draft:
        for _ in range(self.chance.randint(2, 5)):
            self._launch()
            if self.host is None and self.chance.random() < 0.4:
                self._leave()
            elif self.back is None and self.chance.random() < 0.3:
                self._return()
        self._return()
        self.draft.launch("Work", [self._access(value) for value in sorted(self.unread)], [])
        return self.draft

    def _access(self, value: int) -> Access:
        return Access(value, value, self.version[value], 0, SIZE)

    def _launch(self) -> None:
        """Read some values; make a new one, or the next version of one of those."""
        reads = [value for value in self.version if self.chance.random() < 0.4]
        reading = [self._access(value) for value in reads]
        free = [value for value in reads if value != self.traveller or not self.returns]
        if free and self.chance.random() < 0.4:
            made = free[0]
        else:
            made = self.draft.buffer(BufferKind.ACTIVATION, [self.draft.tensor("value", SIZE // 4)], SIZE)
            while len(self.draft.tensors) < len(self.draft.buffers):
                self.draft.tensor("unused", SIZE // 4)
        self.version[made] = self.version.get(made, 0) + 1
        self.unread = self.unread - set(reads) | {made}
        self.draft.launch("Work", reading, [self._access(made)])

    def _leave(self) -> None:
        self.traveller = value = self.chance.choice(list(self.version))
        self.host = self.draft.buffer(BufferKind.HOST_COPY, [value], SIZE)
        self.draft.copy(StepKind.OFFLOAD, self._access(value), self._copy())

    def _return(self) -> None:
        if self.traveller is not None and self.returns and self.back is None:
            self.back = self.draft.copy(StepKind.PREFETCH, self._copy(), self._access(self.traveller))
            self.unread.add(self.traveller)

    def _copy(self) -> Access:
        assert self.traveller is not None
        assert self.host is not None
        return Access(self.traveller, self.host, self.version[self.traveller], 0, SIZE)


def _small_plan(chance: random.Random) -> Plan:
    """A story with waits and places drawn: good and bad plans come out.

    Lives are tight: an extent is born by its first user and freed by all of them.
    """
    story = _Story(chance)
    draft = story.tell()
    steps = [replace(step, waits=_waits(draft.programs["train"], step, chance)) for step in draft.programs["train"]]
    for number, buffer in enumerate(draft.buffers):
        users = [step.id for step in steps if any(a.buffer == number for a in (*step.reads, *step.writes))]
        cut = story.back if story.back is not None and number == story.traveller else len(steps)
        stays = [stay for stay in ([u for u in users if u < cut], [u for u in users if u >= cut]) if stay]
        places = 1 if buffer.space is Space.HOST else PLACES
        draft.buffers[number] = replace(
            buffer,
            extents=tuple(Extent(0, SIZE * chance.randrange(places), SIZE, stay[0], tuple(stay)) for stay in stays),
        )
    draft.programs["train"] = steps
    return draft.plan(bare_model(1), SIZE * PLACES, SIZE)


def _waits(steps: list[Step], step: Step, chance: random.Random) -> tuple[int, ...]:
    """Of each other lane, usually the last step before this one; sometimes any, sometimes none."""
    found = []
    for lane in Lane:
        earlier = [other.id for other in steps[: step.id] if other.lane is lane]
        if lane is not step.lane and earlier and chance.random() < 0.85:
            found.append(earlier[-1] if chance.random() < 0.8 else chance.choice(earlier))
    return tuple(found)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_the_verifier_agrees_with_brute_force(seed: int) -> None:
    plan = _small_plan(random.Random(seed))
    found = verify(plan)
    assert bool(found) == _Machine(plan).goes_wrong(), [violation.message for violation in found]


def test_the_small_plans_are_good_and_bad_and_travel() -> None:
    """What the property above is worth: both verdicts come, for plans that leave and return too."""
    verdicts = Counter[tuple[bool, bool]]()
    for seed in range(400):
        plan = _small_plan(random.Random(seed))
        travels = any(step.kind is StepKind.PREFETCH for step in plan.train.steps)
        verdicts[travels, not verify(plan)] += 1
        assert len(plan.train.steps) <= 8
    assert min(verdicts[travels, good] for travels in (False, True) for good in (False, True)) >= 10, verdicts
