# SPDX-License-Identifier: Apache-2.0
"""Walks a kernel as a workload does: which way at each branch, how often around each loop.

A loop is known by the source line of its `for` or `while`, to which the compiler attributes the branch
that closes it, and by the calls that the line was inlined into. At a branch the walk takes the longer
way, so that what it leaves out is named: other activations than the workload's, lines that it does not
run, and slow paths that are calls.
"""

import collections
import dataclasses
import functools
import math
import re

import machine
import sass


@dataclasses.dataclass(frozen=True)
class Route:
    """Regular expressions of source lines."""
    avoid: tuple = ()  # lines that are not run, or calls around them
    leave: tuple = ()  # own lines of branches that take the shorter way, as unrolled loops that end early

    def __add__(self, other):
        return Route(self.avoid + other.avoid, self.leave + other.leave)


@dataclasses.dataclass(frozen=True)
class Trips:
    """A loop, how often it is gone round, and what differs inside; several for one loop follow one
    another."""
    loop: str       # regular expression of the loop's own line
    times: float    # rounds, a mean where they differ; with a unit, instructions of that kind in all rounds together
    unit: str = ''  # a kind of instruction (kind_of): for loops of which the compiler unrolls a part,
                    # and leaves the rest to the next loop of the same name
    call: str = ''  # regular expression of a call around the line
    where: tuple = ()  # rules for its memory, before those of the walk (see Walk.place)
    route: Route = Route()
    warps: int = 0     # warps of the multiprocessor that go round, the first ones; 0: as outside
    from_last: bool = False  # the last ones instead
    inner: tuple = ()  # Trips of loops inside

    @property
    def key(self):
        return self.loop, self.call

    def fits(self, name):
        own, _, calls = name.partition(' | ')
        return bool(re.search(self.loop, own) and re.search(self.call, calls))


def _all_of(trips):
    for trip in trips:
        yield trip
        yield from _all_of(trip.inner)


MOST_ROUNDS = 6  # of a loop that are simulated: those beyond take as long as the last two


@dataclasses.dataclass
class Mark:
    """One round of a loop: its place in the instructions of a warp, and the loops inside."""
    begin: int
    loops: list
    end: int = 0


@dataclasses.dataclass
class Passage:
    """A loop on a warp's way."""
    depth: int
    name: str
    rounds: float
    counts: collections.Counter  # instructions of one round, inner loops left out, by kind
    marks: list
    cycles: int = 0   # of all rounds
    each: float = 0   # of one round, steady

    def time(self, issued):
        """Sets the cycles, given those at which the warp's instructions issue. Returns the cycles of
        rounds that were not simulated, those of inner loops included."""
        until = lambda at: issued[at] if at < len(issued) else issued[-1]
        lasting, extra = [], 0
        for mark in self.marks:
            inside = sum(loop.time(issued) for loop in mark.loops)
            lasting.append(until(mark.end) - until(mark.begin) + inside)
            extra += inside
        steady = lasting[-2:] if len(lasting) > 2 else lasting
        self.each = sum(steady) / len(steady)
        beyond = round((self.rounds - len(self.marks)) * self.each)
        self.cycles = sum(lasting) + beyond
        return extra + beyond


@dataclasses.dataclass
class Result:
    """A launch."""
    cycles: int
    busy: dict    # unit -> cycles that it is held, that of the busiest scheduler
    loops: list   # Passages of the first warp
    missed: list  # Trips that fitted no loop on the way: the workload is not that of the kernel


@dataclasses.dataclass(frozen=True)
class State:
    """What holds at a place of a warp's way."""
    scopes: tuple  # Trips of the loops around, from the innermost outwards, then those of the launch
    where: tuple
    route: Route
    warp: int
    warps: int   # of the multiprocessor
    loops: list  # Passages of the loop or kernel around

    def trips_of(self, name):
        """The first rule that fits a loop, with the other rules for it beside."""
        for scope in self.scopes:
            first = next((trip.key for trip in scope if trip.fits(name)), None)
            if first is not None:
                return [trip for trip in scope if trip.key == first]
        return [Trips('', 1)]


@functools.lru_cache(None)
def _lines(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read().splitlines()
    except OSError:
        return []


@functools.lru_cache(None)
def text_of(frame):
    path, line = frame
    lines = _lines(path)
    return lines[line - 1].strip() if line <= len(lines) else ''


@functools.lru_cache(None)
def _case_of(frame):
    """The case of a switch over activations that a line belongs to, or None."""
    path, line = frame
    for text in reversed(_lines(path)[:line]):
        label = re.match(r'\s*(?:case |if \(activation == )Activation::k(\w+)(?::|\) return f)', text)
        if label is not None:
            return label[1]
        if text.startswith(('}', 'DEEPPCR_DEVICE', 'template')) or re.match(r'\s*switch', text):
            return None
    return None


@functools.lru_cache(None)
def text_of_frames(source):
    return ' | '.join(map(text_of, source))


def _matches(patterns, source):
    return any(re.search(pattern, text_of_frames(source)) for pattern in patterns)


def kind_of(instruction):
    """The kind that a report counts an instruction as, or None."""
    name = instruction.name
    if name in ('FFMA', 'SHFL', 'MUFU', 'HMMA', 'LDGSTS'):
        return name
    if name in ('LDG', 'LD', 'LDS', 'STG', 'ST', 'STS'):
        return f'{name}.{8 * machine.width(instruction)}'
    return {'LDL': 'spill', 'STL': 'spill', 'MEMBAR': 'fence', 'BAR': 'barrier',
            'UCGABAR_WAIT': 'cluster barrier', 'BRA': 'branch'}.get(
                name, 'double' if name in machine.DOUBLES else None)


class Walk:
    """One kernel, as a warp goes through it."""

    def __init__(self, kernel, activation):
        self.kernel = kernel
        self.activation = activation
        self.blocks = sass.blocks_of(kernel)
        self.loops = sass.loops_of(self.blocks)
        self._ways = {}
        self._met = set()  # Trips that fitted a loop of the launch

    def name(self, loop):
        """Source lines of a loop, from the innermost call outwards."""
        return text_of_frames(self.kernel.instructions[self.blocks[loop.latches[-1]].last].source)

    # ---- ways

    def _instructions(self, number):
        block = self.blocks[number]
        return self.kernel.instructions[block.first:block.last + 1]

    def _weight(self, number, route):
        """Instructions of a block; fewer than none where the workload does not run it, and more where
        it must."""
        run = [i for i in self._instructions(number) if i.name not in ('BRA', 'BSYNC')]
        size = len(self._instructions(number))
        if any(i.name == 'CALL' for i in run):
            return -1000
        cases = [next(filter(None, map(_case_of, i.source)), None) for i in run]
        others = sum(case not in (None, self.activation) for case in cases)
        avoided = sum(_matches(route.avoid, i.source) for i in run) if route.avoid else 0
        if 2 * max(others, avoided) > len(run):
            return -size
        return size + 1000 * (2 * cases.count(self.activation) > len(run))

    def _weight_of(self, loop, route):
        size = sum(len(self._instructions(number)) for number in loop.body)
        closing = self.kernel.instructions[self.blocks[loop.latches[-1]].last]
        case = next(filter(None, map(_case_of, closing.source)), None)
        # The branch that closes a loop may have the source line of another loop that ends alike.
        innermost = all(other is loop or other.header not in loop.body for other in self.loops)
        inside = [i for number in loop.body for i in self._instructions(number)] if innermost else []
        avoided = sum(_matches(route.avoid, i.source) for i in inside)
        if case not in (None, self.activation) or _matches(route.avoid, closing.source) or 2 * avoided > size:
            return -size
        return size + 1000 * (case == self.activation)

    def _way(self, body, start, depth, is_end, route):
        """Blocks and inner loops from a block to an end, each once."""
        inner = {number: loop for loop in self.loops
                 if loop.depth == depth + 1 and loop.header in body and loop.header != start
                 for number in loop.body}

        def following(number):
            loop = inner.get(number)
            if loop is None:
                steps = self.blocks[number].next
            elif number != loop.header:
                raise ValueError(f'{self.kernel.name}: a jump into the middle of a loop')
            else:
                steps = [s for n in sorted(loop.body) for s in self.blocks[n].next if s not in loop.body]
            return [s for s in steps if s in body and s != start]

        best, todo, opened = {}, [(start, False)], set()  # best: number -> (weight, way) or None
        while todo:
            number, ready = todo.pop()
            if number in best:
                continue
            if not ready:
                opened.add(number)
                todo.append((number, True))
                todo.extend((s, False) for s in following(number) if s not in best and s not in opened)
                continue
            loop = inner.get(number)
            last = self.kernel.instructions[self.blocks[number].last]
            ways = [best[s] for s in following(number) if best.get(s) is not None]
            shorter = loop is None and _matches(route.leave, last.source[:1])
            chosen = (min if shorter else max)(ways, key=lambda way: way[0], default=None)
            if chosen is None and not is_end(number):
                best[number] = None
                continue
            weight = self._weight(number, route) if loop is None else self._weight_of(loop, route)
            rest = chosen or (0, None)
            best[number] = (weight + rest[0], (loop or number, rest[1]))
        if best[start] is None:
            raise ValueError(f'{self.kernel.name}: no way from instruction {start}')
        way, steps = best[start][1], []
        while way is not None:
            steps.append(way[0])
            way = way[1]
        return steps

    def way_round(self, loop, route):
        key = (loop.header, loop.depth, route)
        if key not in self._ways:
            self._ways[key] = self._way(loop.body, loop.header, loop.depth,
                                        lambda n: n in loop.latches, route)
        return self._ways[key]

    def way_through(self, route):
        ends = lambda n: any(i.name == 'EXIT' for i in self._instructions(n))
        return self._way(frozenset(self.blocks), 0, 0, ends, route)

    # ---- the instructions of a way

    @staticmethod
    def place(instruction, rules):
        """The level of memory that answers an access: that of the first rule (opcode, regular
        expression of the source, level) that fits, else the L2."""
        return next((place for name, line, place in rules
                     if name == instruction.name and re.search(line, text_of_frames(instruction.source))),
                    'l2')

    def _add_block(self, number, following, where, ops, counts):
        block = self.blocks[number]
        for index in range(block.first, block.last + 1):
            instruction = self.kernel.instructions[index]
            jumps = index == block.last and following is not None and following != index + 1
            reaches = instruction.name in ('LDG', 'LD', 'STG', 'ST', 'ATOMG', 'RED')
            ops.append(machine.op_of(instruction, jumps,
                                     self.place(instruction, where) if reaches else ''))
            counts[kind_of(instruction)] += 1

    def _add_way(self, way, after, state, ops, counts):
        left = {}  # loop's name -> instructions that are left for the next loop of the name
        for k, step in enumerate(way):
            following = way[k + 1] if k + 1 < len(way) else after
            following = following.header if isinstance(following, sass.Loop) else following
            if isinstance(step, sass.Loop):
                self._add_loop(step, state, ops, left)
            else:
                self._add_block(step, following, state.where, ops, counts)

    def _rounds(self, trip, name, way, left):
        """Rounds of a loop, by the instructions that are left for it."""
        if not trip.unit:
            return trip.times
        in_round = sum(kind_of(instruction) == trip.unit for step in way if not isinstance(step, sass.Loop)
                       for instruction in self._instructions(step))
        if in_round == 0:
            raise ValueError(f'{self.kernel.name}: no {trip.unit} in {name}')
        wanted = left.get(name, trip.times)
        left[name] = wanted % in_round
        return wanted // in_round

    def _add_loop(self, loop, state, ops, left):
        name = self.name(loop)
        for trip in state.trips_of(name):
            self._met.add(trip)
            inside = dataclasses.replace(state, scopes=(trip.inner,) + state.scopes,
                                         where=trip.where + state.where, route=state.route + trip.route)
            way = self.way_round(loop, inside.route)
            rounds = self._rounds(trip, name, way, left)
            place = state.warps - 1 - state.warp if trip.from_last else state.warp
            if rounds == 0 or trip.warps and place >= trip.warps:
                continue
            marks = []
            for _ in range(min(math.ceil(rounds), MOST_ROUNDS)):
                mark = Mark(len(ops), [])
                counts = collections.Counter()
                self._add_way(way, loop.header, dataclasses.replace(inside, loops=mark.loops), ops, counts)
                mark.end = len(ops)
                marks.append(mark)
            del counts[None]
            state.loops.append(Passage(loop.depth, name, rounds, counts, marks))

    def launch(self, warps, where=(), trips=(), route=Route()):
        """A launch in which each multiprocessor has one block of `warps` warps."""
        way, ways = self.way_through(route), []
        self._met = set()
        for warp in reversed(range(warps)):
            ops, loops = [], []
            self._add_way(way, None, State((trips,), where, route, warp, warps, loops), ops, collections.Counter())
            ways.insert(0, ops)
        issued, ends, busy = machine.run(ways)
        extra = sum(passage.time(issued[0]) for passage in loops)
        longer = (max(ends) + extra) / max(ends)
        missed = [trip for trip in _all_of(trips) if trip.times > 0 and trip not in self._met]
        return Result(max(ends) + extra, {unit: round(held * longer) for unit, held in busy.items()}, loops, missed)
