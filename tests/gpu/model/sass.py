# SPDX-License-Identifier: Apache-2.0
"""Reads the disassembly of a CUDA kernel: instructions, their control fields, source lines, loops.

The text is that of `nvdisasm -c -hex -gi` for an instruction set of 128 bits an instruction (sm_70 and
later). Its upper word carries what the compiler told the hardware's scheduler: in bits 105 to 108 the
cycles until the warp's next instruction may issue, in 110 to 112 and 113 to 115 the scoreboards that
this instruction clears when its result is there and when its operands have been read (7: none), in 116
to 121 the scoreboards that it waits for.
"""

import dataclasses
import re

LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)( inlined at "([^"]*)", line (\d+))?')
CODE = re.compile(r'^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;'
                  r'\s*/\* 0x([0-9a-f]{16}) \*/')
UPPER = re.compile(r'^\s*/\* 0x([0-9a-f]{16}) \*/')
TARGET = re.compile(r'\(?`?\(?(\.L_x_\d+)\)?')


@dataclasses.dataclass
class Instruction:
    address: int
    predicate: str  # '@P0', '@!P0' or ''
    opcode: str     # with its modifiers: LDG.E.128.CONSTANT
    operands: str
    stall: int      # cycles before the warp may issue its next instruction
    result_board: int   # the scoreboard that its result clears, or -1
    operand_board: int  # the scoreboard that clears when its operands have been read, or -1
    waits: int          # a bit for each scoreboard that it waits for
    source: tuple       # ((file, line), ...) from the innermost inlined function outwards

    @property
    def name(self):
        return self.opcode.split('.')[0]


@dataclasses.dataclass
class Kernel:
    name: str        # mangled
    instructions: list
    labels: dict     # label -> index of an instruction


def _decode(match, upper, source):
    control = int(upper, 16) >> 41  # bits 105 and up of 128
    board = lambda bits: -1 if bits == 7 else bits
    return Instruction(
        address=int(match[1], 16), predicate=(match[2] or '').strip(), opcode=match[3],
        operands=match[4], stall=control & 15, result_board=board(control >> 5 & 7),
        operand_board=board(control >> 8 & 7), waits=control >> 11 & 63, source=source)


def read_kernels(text):
    """Kernels of a disassembly, in its order."""
    kernels, kernel, frames, pending = [], None, [], None
    for line in text.splitlines():
        if line.startswith('.text.'):
            kernel = Kernel(line[len('.text.'):].rstrip(':'), [], {})
            kernels.append(kernel)
            frames = []
            continue
        if kernel is None:
            continue
        if pending is not None:
            upper = UPPER.match(line)
            if upper is None:
                raise ValueError(f'{kernel.name}: an instruction without its upper word: {line!r}')
            kernel.instructions.append(_decode(pending, upper[1], source))
            pending = None
            continue
        where = LINE.match(line)
        if where is not None:
            frames.append((where[1], int(where[2])))
            continue
        code = CODE.match(line)
        if code is not None:
            if frames:  # else the lines of the instruction before
                source, frames = tuple(frames), []
            elif not kernel.instructions:
                source = ()
            pending = code
            continue
        label = re.match(r'^(\.L_x_\d+):', line)
        if label is not None:
            kernel.labels[label[1]] = len(kernel.instructions)
    return [kernel for kernel in kernels if kernel.instructions]


def jump_target(kernel, instruction):
    """Index of the instruction that a direct branch goes to, or None."""
    target = TARGET.search(instruction.operands)
    return None if target is None else kernel.labels.get(target[1])


def successors(kernel, index):
    """Indices of the instructions that may follow one in the same function."""
    instruction = kernel.instructions[index]
    following = [index + 1] if index + 1 < len(kernel.instructions) else []
    if instruction.name in ('BRA', 'JMP') and '.' not in instruction.opcode[:4]:
        target = jump_target(kernel, instruction)
        jump = [] if target is None else [target]
        unconditional = not instruction.predicate and not re.match(r'!?U?P\d|~URZ', instruction.operands)
        return jump if unconditional else jump + following
    if instruction.name == 'BRX':
        raise ValueError(f'{kernel.name}: an indirect branch at {instruction.address:#x}')
    if instruction.name in ('EXIT', 'RET', 'BREAK') or instruction.name == 'BPT':
        return following if instruction.predicate else []
    return following  # BSYNC, WARPSYNC and calls go on with the next one


@dataclasses.dataclass
class Block:
    first: int   # of instructions
    last: int    # inclusive
    next: list   # numbers of blocks
    before: list


def blocks_of(kernel):
    """Basic blocks, those that the kernel's entry reaches; by number of their first instruction."""
    follow, reached, todo = {}, set(), [0]
    while todo:
        index = todo.pop()
        if index in reached:
            continue
        reached.add(index)
        follow[index] = successors(kernel, index)
        todo.extend(follow[index])
    starts = {0}
    for index in reached:
        if len(follow[index]) != 1 or follow[index][0] != index + 1:
            starts.update(follow[index])
    blocks = {}
    for start in sorted(starts):
        last = start
        while follow[last] == [last + 1] and last + 1 not in starts:
            last += 1
        blocks[start] = Block(start, last, list(dict.fromkeys(follow[last])), [])
    for number, block in blocks.items():
        for successor in block.next:
            blocks[successor].before.append(number)
    return blocks


def _dominators(blocks):
    order, seen = [], set()

    def visit(start):
        stack = [(start, iter(blocks[start].next))]
        seen.add(start)
        while stack:
            number, rest = stack[-1]
            for successor in rest:
                if successor not in seen:
                    seen.add(successor)
                    stack.append((successor, iter(blocks[successor].next)))
                    break
            else:
                order.append(number)
                stack.pop()

    visit(0)
    order.reverse()
    rank = {number: k for k, number in enumerate(order)}
    above = {0: 0}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            known = [b for b in blocks[number].before if b in above]
            best = known[0]
            for other in known[1:]:
                a, b = best, other
                while a != b:
                    if rank[a] > rank[b]:
                        a = above[a]
                    else:
                        b = above[b]
                best = a
            if above.get(number) != best:
                above[number], changed = best, True
    return above


@dataclasses.dataclass
class Loop:
    header: int    # number of a block
    latches: list  # blocks that jump back to the header
    body: frozenset
    depth: int     # 1 where no loop is around it


def loops_of(blocks):
    """Natural loops, one a header, the outer ones first."""
    above = _dominators(blocks)

    def dominates(a, b):
        while b != a and b != above[b]:
            b = above[b]
        return a == b

    latches = {}
    for number in above:
        for successor in blocks[number].next:
            if dominates(successor, number):
                latches.setdefault(successor, []).append(number)
    loops = []
    for header, ends in latches.items():
        body, todo = {header}, list(ends)
        while todo:
            number = todo.pop()
            if number not in body:
                body.add(number)
                todo.extend(blocks[number].before)
        loops.append(Loop(header, sorted(ends), frozenset(body), 0))
    for loop in loops:
        loop.depth = sum(loop.header in other.body for other in loops)
    return sorted(loops, key=lambda loop: (loop.depth, loop.header))
