# SPDX-License-Identifier: Apache-2.0
"""A model of one multiprocessor of an H100 or H200 that runs the instructions of a block.

A warp issues in order. It waits as the compiler told it to: so many cycles after each instruction, and
for the scoreboards that name the results it wants (sass.py). A unit that one instruction holds takes no
other meanwhile, of whichever warp.
"""

import collections
import dataclasses
import functools
import heapq

CLOCK_GHZ = 1.98  # boost clock of an H200 SXM, NVIDIA's data sheet
SCHEDULERS = 4    # of a multiprocessor: CUDA C++ programming guide, compute capability 9.0

# Cycles from issue to result. (M) measured by tests/gpu/micro_trial.cu on an H100 and an H200, which
# agree but where both figures stand (tests/bench/results/h100 and h200); (A) assumed, for want of any.
LATENCY = {
    'shared': 23,      # (M)
    'l1': 34,          # (M)
    'l2': 280,         # (M)
    'dsmem': 195,      # (M) 186 to 197 where nothing else is under way
    'pcie': 2100,      # (M) mapped host memory: 2228 and 1980
    'shuffle': 24,     # (M)
    'special': 17,     # (M) MUFU
    'convert': 17,     # (M) I2F, F2I, F2F
    'double': 8,       # (M)
    'constant': 28,    # (M) LDC with an address that is known late
    'register': 34,    # (M) S2R, S2UR, R2UR, CS2R: 38 with a comparison
    'vote': 13,        # (M) VOTE, REDUX, POPC, FLO: 17 with a comparison
    'fence': 270,      # (M) MEMBAR with nothing on its way, on an H200; 670 on an H100
    'barrier': 30,     # (M) BAR.SYNC of a block: 20 of 4 warps, 44 of 16
    'cluster': 89,     # (M) UCGABAR_ARV to the end of UCGABAR_WAIT, without the fence
    'exchange': 700,   # (A) from a block's store until another's load has it: twice the way to the L2
                       # and some of the way of a load that was too early
    'invalidate': 20,  # (A) CCTL.IVALL
    'tensor': 24,      # (M) mma.m16n8k8 of TF32
    'tensor_of_halves': 33,  # (A) mma.m16n8k16 of halves
    'operands': 12,    # (A) until a store or a load has read its registers
}
TAKEN_BRANCH = 10  # (A) cycles until the first instruction behind a branch that jumps

# Cycles that a warp's instruction holds a unit (P), after the throughputs that NVIDIA documents for
# compute capability 9.0; 128 bytes a cycle of L1 and shared memory, 64 of the L2.
_UNITS = {
    'fma': 1, 'alu': 2, 'multiply': 2, 'control': 1, 'uniform': 1,
    'double': 2, 'special': 8, 'convert': 8, 'shuffle': 1, 'tensor': 8,
}
# Units that instructions queue for, without keeping the warp, and (A) cycles of work that a queue holds.
_QUEUED = ('shuffle', 'memory', 'special', 'convert', 'double', 'tensor')
QUEUE = 64
_STALLS = {'MEMBAR': 'fence', 'CCTL': 'invalidate'}  # these have no scoreboard
BARRIERS = {'BAR': 'barrier', 'UCGABAR_WAIT': 'cluster'}
_OF_THE_MULTIPROCESSOR = ('shuffle', 'memory')  # the other units are a scheduler's own
DOUBLES = ('DADD', 'DMUL', 'DFMA', 'DSETP', 'DMNMX')
_CONVERSIONS = ('I2F', 'F2I', 'F2F', 'FRND', 'I2FP', 'F2FP')
_FMA = ('FFMA', 'FMUL', 'FADD', 'FFMA2', 'HFMA2')
_CONTROL = ('BRA', 'BSSY', 'BSYNC', 'BAR', 'WARPSYNC', 'EXIT', 'NOP', 'MEMBAR', 'ERRBAR', 'CGAERRBAR', 'CCTL')
_REGISTERS = ('S2R', 'S2UR', 'R2UR', 'CS2R', 'B2R', 'BMOV')
_VOTES = ('VOTE', 'VOTEU', 'REDUX', 'POPC', 'FLO', 'MATCH', 'BREV')


def width(instruction):
    """Bytes of one lane's access."""
    for bits in (128, 64):
        if f'.{bits}' in instruction.opcode:
            return bits // 8
    return 1 if '.U8' in instruction.opcode else 4


def _memory(instruction, place):
    place = {'LDS': 'shared', 'STS': 'shared', 'LDL': 'l1', 'STL': 'l1'}.get(instruction.name, place)
    cycles = width(instruction) * 32 // (64 if place == 'l2' else 128)
    return LATENCY[place], 'memory', max(cycles, 1)


def cost(instruction, place):
    """(latency of its result, its unit, cycles that it holds the unit)."""
    name = instruction.name
    if name in ('LDG', 'LD', 'LDS', 'LDL', 'STG', 'ST', 'STS', 'STL', 'ATOM', 'ATOMG', 'ATOMS', 'RED'):
        return _memory(instruction, place)
    if name in ('LDC', 'ULDC'):
        return LATENCY['constant'], 'alu', 1
    if name == 'SHFL':
        return LATENCY['shuffle'], 'shuffle', _UNITS['shuffle']
    if name == 'MUFU':
        return LATENCY['special'], 'special', _UNITS['special']
    if name in _CONVERSIONS:
        return LATENCY['convert'], 'convert', _UNITS['convert']
    if name in DOUBLES:
        return LATENCY['double'], 'double', _UNITS['double']
    if name in ('HMMA', 'IMMA', 'DMMA'):
        return LATENCY['tensor_of_halves' if '.16816' in instruction.opcode else 'tensor'], 'tensor', _UNITS['tensor']
    if name in _REGISTERS:
        return LATENCY['register'], 'alu', 1
    if name in _VOTES:
        return LATENCY['vote'], 'alu', 1
    if name in _FMA:
        return 0, 'fma', _UNITS['fma']
    if name == 'IMAD':
        return 0, 'multiply', _UNITS['multiply']
    if name in _CONTROL:
        return 0, 'control', _UNITS['control']
    if name.startswith('U'):
        return 0, 'uniform', _UNITS['uniform']
    return 0, 'alu', _UNITS['alu']


@dataclasses.dataclass(frozen=True)
class Op:
    """An instruction at its place in a warp's way, as far as time is concerned."""
    name: str
    stall: int   # cycles until the warp's next instruction
    waits: int   # scoreboards, a bit each
    result_board: int
    operand_board: int
    latency: int
    unit: str
    held: int    # cycles that it holds the unit


@functools.lru_cache(None)
def _op(name, stall, waits, result_board, operand_board, price):
    return Op(name, stall, waits, result_board, operand_board, *price)


def op_of(instruction, jumps, place):
    """`jumps`: the next instruction stands elsewhere; `place`: level of memory, or ''."""
    stall = max(instruction.stall, 1, TAKEN_BRANCH if jumps else 0,
                LATENCY[_STALLS[instruction.name]] if instruction.name in _STALLS else 0)
    return _op(instruction.name, stall, instruction.waits, instruction.result_board,
               instruction.operand_board, cost(instruction, place))


class _Warp:
    def __init__(self, ops):
        self.ops = ops
        self.at = 0
        self.ready = 0
        self.boards = [0] * 6

    def wait(self):
        """Takes account of what the next instruction waits for."""
        waits = self.ops[self.at].waits
        for board in range(6):
            if waits >> board & 1 and self.boards[board] > self.ready:
                self.ready = self.boards[board]


def run(ways):
    """Issues the warps of one block, warp k on scheduler k % SCHEDULERS; the warp that has been ready
    longest goes first. `ways` has each warp's Ops. Returns, a warp each, the cycles at which its
    instructions issue and the cycle at which it has ended; and the cycles that each unit is held, that
    of the busiest scheduler."""
    warps = [_Warp(ops) for ops in ways]
    issued = [[0] * len(ops) for ops in ways]
    free = {}  # (unit, scheduler) or unit -> cycle
    waiting = []  # at a barrier
    heap = [(0, k) for k, warp in enumerate(warps) if warp.ops]
    for _, k in heap:
        warps[k].wait()
    heapq.heapify(heap)
    running = len(heap)
    ends = [0] * len(warps)
    held = collections.Counter()
    while heap:
        ready, k = heapq.heappop(heap)
        warp, scheduler = warps[k], k % SCHEDULERS
        op = warp.ops[warp.at]
        unit = op.unit if op.unit in _OF_THE_MULTIPROCESSOR else (op.unit, scheduler)
        now = max(warp.ready, free.get(('issue', scheduler), 0),
                  free.get(unit, 0) - (QUEUE if op.unit in _QUEUED else 0))
        if now > ready:  # others may come first
            heapq.heappush(heap, (now, k))
            continue
        free['issue', scheduler] = now + 1
        taken = max(now, free.get(unit, 0)) + op.held
        free[unit] = taken
        held[unit] += op.held
        held['issue', scheduler] += 1
        if op.result_board >= 0:
            warp.boards[op.result_board] = max(warp.boards[op.result_board], taken + op.latency)
        if op.operand_board >= 0:
            warp.boards[op.operand_board] = max(warp.boards[op.operand_board],
                                                taken + LATENCY['operands'])
        issued[k][warp.at] = now
        warp.ready = now + op.stall
        warp.at += 1
        done = warp.at == len(warp.ops)
        if done:
            ends[k] = max([warp.ready] + warp.boards)
            running -= 1
        elif op.name in BARRIERS:
            waiting.append(k)
        else:
            warp.wait()
            heapq.heappush(heap, (warp.ready, k))
        if waiting and len(waiting) == running:
            barrier = warps[waiting[0]].ops[warps[waiting[0]].at - 1].name
            opens = max(warps[w].ready for w in waiting) + LATENCY[BARRIERS[barrier]]
            for w in waiting:
                warps[w].ready = max(warps[w].ready, opens)
                warps[w].wait()
                heapq.heappush(heap, (warps[w].ready, w))
            waiting = []
    busy = collections.Counter()
    for unit, cycles in held.items():
        name = unit if isinstance(unit, str) else unit[0]
        busy[name] = max(busy[name], cycles)
    return issued, ends, busy
