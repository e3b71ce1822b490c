#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disassemblies of a few instructions, whose ways and times can be counted by hand."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import machine  # pylint: disable=wrong-import-position
import sass  # pylint: disable=wrong-import-position
import walk  # pylint: disable=wrong-import-position
from walk import Route, Trips  # pylint: disable=wrong-import-position


def control(stall=1, sets=7, reads=7, waits=0):
    """The upper word of an instruction."""
    return (stall | sets << 5 | reads << 8 | waits << 11) << 41


class Listing:
    """Writes a disassembly as nvdisasm does, over a source file."""

    def __init__(self, source=''):
        folder = tempfile.TemporaryDirectory()
        unittest.addModuleCleanup(folder.cleanup)
        self.source = pathlib.Path(folder.name) / 'kernel.h'
        self.source.write_text(source)
        self.lines = ['.text._Z6KernelILi16EEvv:']
        self.address = 0

    def add(self, code, line=1, **fields):
        self.lines += [f'\t//## File "{self.source}", line {line}',
                       f'        /*{self.address:04x}*/   {code} ;  /* 0x{0:016x} */',
                       f'               /* 0x{control(**fields):016x} */']
        self.address += 16
        return self

    def label(self, name):
        self.lines.append(f'{name}:')
        return self

    def kernel(self):
        kernel, = sass.read_kernels('\n'.join(self.lines) + '\n')
        return kernel


def op(opcode, stall=1, sets=-1, waits=0, place=''):
    return machine.op_of(sass.Instruction(0, '', opcode, '', stall, sets, -1, waits, ()), False, place)


class SassTest(unittest.TestCase):

    def test_control_fields(self):
        kernel = Listing().add('@!P3 LDG.E.128.CONSTANT R4, desc[UR8][R44.64]', stall=4, sets=5, reads=0,
                               waits=0b100010).kernel()
        load, = kernel.instructions
        self.assertEqual((load.predicate, load.opcode, load.operands),
                         ('@!P3', 'LDG.E.128.CONSTANT', 'R4, desc[UR8][R44.64]'))
        self.assertEqual((load.stall, load.result_board, load.operand_board, load.waits),
                         (4, 5, 0, 0b100010))
        self.assertEqual(machine.width(load), 16)

    def test_a_lost_upper_word_is_an_error(self):
        with self.assertRaises(ValueError):
            sass.read_kernels('\n'.join(Listing().add('EXIT').lines[:-1]) + '\nnothing\n')

    def test_loops_inside_one_another(self):
        kernel = (Listing().add('MOV R0, RZ').label('.L_x_1').add('MOV R1, RZ').label('.L_x_2')
                  .add('FFMA R2, R2, R2, R2').add('@P0 BRA `(.L_x_2)').add('@P1 BRA `(.L_x_1)')
                  .add('EXIT').kernel())
        outer, inner = sass.loops_of(sass.blocks_of(kernel))
        self.assertEqual((outer.depth, inner.depth), (1, 2))
        self.assertLess(inner.body, outer.body)

    def test_code_after_the_exit_is_no_part_of_the_kernel(self):
        kernel = Listing().add('EXIT').label('.L_x_1').add('BRA `(.L_x_1)').kernel()
        self.assertEqual(list(sass.blocks_of(kernel)), [0])


class MachineTest(unittest.TestCase):

    def test_a_scheduler_issues_one_instruction_a_cycle(self):
        for warps, cycles in ((1, 100), (4, 100), (8, 200), (16, 400)):
            _, ends, busy = machine.run([[op('FFMA')] * 100] * warps)
            self.assertEqual(max(ends), cycles, warps)
            self.assertEqual(busy['fma'], cycles)

    def test_a_result_is_waited_for(self):
        issued, _, _ = machine.run([[op('LDS.128', 4, sets=2), op('FFMA', waits=0b100)]])
        self.assertEqual(issued[0][1], 4 + machine.LATENCY['shared'])  # 512 bytes take 4 cycles

    def test_a_wait_for_another_board_is_none(self):
        issued, _, _ = machine.run([[op('LDG.E', 4, sets=2, place='l2'), op('FFMA', waits=0b1)]])
        self.assertEqual(issued[0][1], 4)

    def test_warps_share_the_way_to_shared_memory(self):
        for warps in (4, 16):
            _, ends, busy = machine.run([[op('LDS.128', sets=0)] * 50] * warps)
            self.assertEqual(busy['memory'], 4 * 50 * warps)
            self.assertEqual(max(ends), 4 * 50 * warps + machine.LATENCY['shared'])

    def test_a_barrier_waits_for_the_last_warp(self):
        barrier, fma = op('BAR.SYNC'), op('FFMA')
        issued, _, _ = machine.run([[barrier, fma], [fma] * 90 + [barrier, fma]])
        self.assertEqual(issued[0][1], issued[1][91])
        self.assertEqual(issued[0][1], 91 + machine.LATENCY['barrier'])

    def test_a_warp_that_has_ended_holds_no_barrier(self):
        for instructions in (5, 200):
            _, ends, _ = machine.run([[op('BAR.SYNC'), op('FFMA')], [op('FFMA')] * instructions])
            self.assertGreaterEqual(ends[0], machine.LATENCY['barrier'], instructions)

    def test_a_fence_takes_its_time_without_a_board(self):
        issued, _, _ = machine.run([[op('MEMBAR.ALL.GPU', 6), op('FFMA')]])
        self.assertEqual(issued[0][1], machine.LATENCY['fence'])


ACTIVATIONS = '''DEEPPCR_DEVICE float Activate(Activation activation, float a) {
  switch (activation) {
    case Activation::kRelu:
      return a < 0 ? 0 : a;
    case Activation::kTanh:
      return tanhf(a);
  }
}
for (int l = 0; l < n; ++l) {
  if (rare) Rare();
'''


def activation_loop():
    """A loop over two activations, behind which it goes on."""
    return (Listing(ACTIVATIONS).add('MOV R0, RZ', 9).label('.L_x_1')
            .add('LDG.E R1, desc[UR8][R2.64]', 9, stall=4, sets=0)
            .add('@P0 BRA `(.L_x_2)', 2, waits=1).add('FSEL R1, R1, RZ, P0', 4).add('BRA `(.L_x_3)', 4)
            .label('.L_x_2').add('MUFU.TANH R1, R1', 6).add('FMUL R1, R1, R1', 6)
            .add('FMUL R1, R1, R1', 6).label('.L_x_3').add('@P2 BRA `(.L_x_4)', 9)
            .add('FADD R1, R1, R1', 10, stall=15).add('FADD R1, R1, R1', 10, stall=15)
            .label('.L_x_4').add('@P1 BRA `(.L_x_1)', 9).add('EXIT', 9).kernel())


class WalkTest(unittest.TestCase):

    def loop(self, activation, route=Route(), trips=(Trips('int l', 3),)):
        loop, = walk.Walk(activation_loop(), activation).launch(1, (), trips, route).loops
        self.assertIn('for (int l = 0', loop.name)
        return loop

    def test_the_workload_chooses_the_activation(self):
        self.assertEqual(self.loop('Relu').counts['MUFU'], 0)
        self.assertEqual(self.loop('Tanh').counts['MUFU'], 1)

    def test_a_line_that_is_avoided_takes_no_time(self):
        self.assertLess(self.loop('Relu', Route((r'Rare\(\)',))).each, self.loop('Relu').each)

    def test_rounds_beyond_those_simulated_take_as_long(self):
        short, long = (self.loop('Relu', trips=(Trips('int l', times),)) for times in (6, 1000))
        self.assertAlmostEqual(long.cycles / short.cycles, 1000 / 6, delta=3)

    def test_rounds_by_the_instructions_of_a_kind(self):
        self.assertEqual(self.loop('Relu', trips=(Trips('int l', 7, 'LDG.32'),)).rounds, 7)
        with self.assertRaises(ValueError):
            self.loop('Relu', trips=(Trips('int l', 7, 'SHFL'),))

    def test_rounds_that_fit_no_loop_are_named(self):
        inner, outer = Trips('double l', 2), Trips('int l', 3, inner=(Trips('float l', 1), Trips('bool l', 0)))
        missed = walk.Walk(activation_loop(), 'Relu').launch(1, (), (inner, outer)).missed
        self.assertEqual([trip.loop for trip in missed], ['double l', 'float l'])

    def test_the_level_of_memory_counts(self):
        near, far = (walk.Walk(activation_loop(), 'Relu').launch(1, rules, ()).cycles
                     for rules in ((('LDG', 'int l', 'l1'),), ()))
        # The L2 gives 64 bytes a cycle, the L1 128: a cycle more for 32 lanes of 4 bytes.
        self.assertEqual(far - near, machine.LATENCY['l2'] - machine.LATENCY['l1'] + 1)


if __name__ == '__main__':
    unittest.main()
