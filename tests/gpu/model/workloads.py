# SPDX-License-Identifier: Apache-2.0
"""The workloads of the targets, as launches of kernels and the ways of these through their code.

W1: a dense stack, L = 1024, D = 16, relu, C = 8: Newton by a cluster of 16 blocks of 8 warps, in the
    passes that digits-resnet takes (on a CPU, 64 samples).
W3: the way back through such a stack, C = 8: a cluster of 16 blocks of 8
    warps.
W6: a dense stack, L = 1024, D = 64, relu, residual, step by step: a block of eight warps; Newton by 103 blocks
    of ten layers each, 26 that compose their matrices and one that takes vectors through these, in the passes
    that the networks of the sweep take (likewise, from the fitted guess). What these do one after another is
    added up.
W4: DDPM, L = 1000, D = 16, a residual denoiser of three blocks with H = 128, silu, C = 1: Newton by 125
    blocks of 8 warps, eight intervals each, in the passes that digits-ddpm takes (likewise).
W5: DDIM, L = 100, D = 16, an adaLN denoiser of three blocks with H = 1024, silu, step by step, by 130
    blocks, most of which have one of the 128 panels of each layer.
"""

import dataclasses

from walk import Route, Trips

MULTIPROCESSORS = 132   # of an H200, and of an H100 SXM
LAUNCH_CYCLES = 3000    # (A) 1.5 us from a launch to the next one of its stream
_PASSES = r'HasStopped\(progress'
UP, DOWN = r'level = 1;', r'level = chain_level_ - 1'


@dataclasses.dataclass(frozen=True)
class Launch:
    """Launches of one kernel, all alike."""
    part: str
    sources: tuple   # names that its .cu may have
    kernel: str      # part of its mangled name
    activation: str  # name of the enumerator
    warps: int       # of a block; a multiprocessor has one block at a time
    trips: tuple
    where: tuple = ()
    route: Route = Route()
    times: float = 1  # launches in the workload
    row: tuple = ()  # (key, value) of the row of a GPU's results that is of this launch; () if none is
    blocks: int = 1  # of a launch, a cluster being one
    beside: bool = False  # what other blocks of the launch before do, for which its blocks wait meanwhile


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    what: str
    launches: tuple
    others: int      # launches before and after, of which only the launching is counted
    per: int = 1     # for the figure of one layer or step
    hot: tuple = ()  # (what it is, Trips that fit) of the loops that the table shows


def _up(times, nodes, warps, matrices):
    """Levels of the tree that are alike: `nodes` of them for each of `warps` warps, the last for vectors, the
    first for matrices, if these are formed."""
    vectors = Trips(r'k = warp;', nodes, call='ReduceNode', warps=warps, from_last=True)
    return Trips(UP, times, inner=(vectors, Trips(r'k = warp;', nodes, warps=warps)) if matrices else (vectors,))


_VECTOR_FMA = 8  # of a lane, for the product of a matrix with one vector


def _chain(nodes, threads, vectors, matrices):
    """The node of the chain that a block has, sent by its threads, those of the first block to all 16, and the
    nodes of the last block, walked by a warp."""
    sent = [(80, 'ShareNode<kNum') if vectors > 1 else (16, 'ShareNode<W>')]
    if matrices:
        sent.append((256, r'ShareNode<W \*'))
    return (*(Trips(r'b = context\.block', -(-16 // max(1, threads // (floats // 4))), call=call)
              for floats, call in sent),
            Trips(r'v = warp_', 1, warps=1,
                  inner=(Trips(r'j = 1; j < last', 2 * _VECTOR_FMA * (nodes - 2), 'FFMA'),)))


def _down(levels, vectors):
    return Trips(DOWN, _VECTOR_FMA * vectors * levels, 'FFMA')


_VECTORS = 5  # of a correction: the residual and the probes
def _w1_pass(vectors, rounds=0):
    """The prefixes of eight intervals: vectors by the last warps, rounds of matrices by the first four."""
    return (Trips('k = 0; k < steps', 2 * 8, 'LDS.128'), Trips('task = warps_', 1, warps=vectors, from_last=True),
            Trips(r'i = first \+ 1', 2 * _VECTOR_FMA * 7, 'FFMA'), Trips('round = 0', rounds),
            Trips('k = warp_; k < tree_', 1, warps=4), *_chain(16, 256, vectors, rounds > 0), Trips(r'i = warp_', 1))


_W1_MEMORY = (('LD', '', 'dsmem'), ('ST', '', 'dsmem'))
# Activations of two straight parts, layers in shared memory; the first barrier is one of blocks, as there
# is a tree, and a solve this short looks at no cancel word.
_W1 = Route((r'steps, stack, entry', r'PiecewiseRule<bool>', 'OfActivation', r'propagation\.Run\( ', 'kDiagonal', 'kAfterPropagate', 'LoadVolatile', 'AfterLinearPass',
             'FormLevels', r'level = chain_level_ - 1',
             'return a / b'))
_FULL = Route((r'Return\(next', r'PropagateAs<Beside::kProbes', r'PropagateAs<Beside::kNothing', 'ShareNode<kNum', 'kDiagonal', 'confirms', 'AfterConfirmation'),
              (r'vectors\(\) == 1 \? (ApplyTo|UpdateAs|EnterLevel|CopyRows|task)',))
_CORRECTION = Route((r'Return\(next', r'PropagateAs<Beside::kTangents', r'PropagateAs<Beside::kNothing', 'ComposeNode|ComposePrefixes|kBeforeRound', r'ShareNode<W', 'kDiagonal', 'confirms', 'AfterConfirmation'))
# In parts the matrices of the nodes are formed anew.
_CORRECTION_IN_PARTS = Route(_CORRECTION.avoid[:3] + ('ShareNode<W>', 'confirms', 'kDiagonal', 'AfterConfirmation'))
_CONFIRMATION_IN_PARTS = Route(('ShareNode<kNum', 'AfterNewtonPass', r'progress->update > 0'), (r'vectors\(\) == 1 \? (ApplyTo|UpdateAs|EnterLevel|CopyRows|task)',))
_CONFIRMATION = Route((r'PropagateAs<Beside::kTangents', r'PropagateAs<Beside::kProbes', 'ComposeNode|ComposePrefixes|kBeforeRound', r'ShareNode<W \*|ShareNode<kNum', 'kDiagonal',
                       'AfterNewtonPass', r'progress->update > 0'),
                      (r'vectors\(\) == 1 \? (ApplyTo|UpdateAs|EnterLevel|CopyRows|task)',))


_GROUPS = r'j < groups_; \+\+j'
_TILES = r'tile = team\.warp'
_GROUPS_LEFT = r'; j < groups_; \+\+j'


# Loops over the groups of a layer, of which a warp takes a panel; two warps have the output layer's.
_PANELS = (Trips(_GROUPS, 2, 'LDS.128', r'InputLayer\(steps\)'), Trips(_TILES, 1, call='OutputTile', warps=2),
           Trips(_GROUPS, 2 * 8, 'LDS.128', 'OutputTile'))


_RESIDUAL = (r'AdaLnBlock\(steps', r'Modulate\(steps', r'InnerLayer\(steps', r'OuterLayer\(steps', 'NormOfRow')
_PREFETCHED = (('LDG', r'\.modulation\[', 'l1'),)  # a step, or an evaluation, ahead
_BLOCKS = r'b = Held::kCount; b < d_\.num_blocks'
# P = 1000 over 16 blocks of 16 warps, the tree in shared memory: 64 intervals a block, of which a
# warp copies four and updates four.
_W4_NODES = (32, 16, 8, 4, 2, 1)
def _w4_tree(vectors):
    down = (Trips(DOWN, 1, inner=(Trips(r'k = warp_; k < in_block', -(-nodes // 16), warps=min(nodes, 16)),))
            for nodes in reversed(_W4_NODES))
    return (Trips(r'at = context_\.thread', 8, 'LDGSTS', r'CopyRows<W \* W'),
            Trips(r'at = context_\.thread', -(-64 * 4 * vectors // 512), 'LDGSTS', r'CopyRows<(W, kR|kR)'),
            Trips('i = warp_', 3, route=Route(('ShareHalo',))), Trips('i = warp_', 1),
            *(_up(1, -(-nodes // 16), min(nodes, 16), True) for nodes in _W4_NODES),
            *down, *_chain(16, 512, vectors, True))


# The states are prefetched.
_W4_MEMORY = (('LDG', 'LoadVolatile', 'pcie'), ('LDG', 'UpdateAs', 'l1'), ('LD', '', 'dsmem'), ('ST', '', 'dsmem'))


# Of steps between evaluations, 63 of 16 elements, and of an evaluation with three blocks.
_HELD = (Trips(r'k = first_; k < count', 1), Trips(r'i < width_; i \+= threads_', 1), Trips(r'first < dim_', 1),
         Trips('first < element', 1))
_HALVES = Route(('TakeCarefully', 'ClearBeyond', 'Source<false>', r'^(?!.*if \(d_).*StreamedBlocks'),
                (r'j == 0 .. j \* kPanelCols < cols', r'd_\.num_blocks > kHalfBlocks'))

_DIFFUSION = ('diffusion_kernel.cu', 'kernel.cu')
_STEPS = Route(_RESIDUAL)


# Eight intervals a block: their states, a layer's 16 panels by eight warps in pairs, the output layer's
# two in four parts of the states; then a tile of tangents a warp. Loops of an interval's elements end
# where they begin, but for those that a lane has four of.
_RESIDENT = (
    Trips(r'4 \* context_\.thread', 48, call=r'd\.first'), Trips(r'4 \* context_\.thread', 2),
    Trips(r'b < d_\.num_blocks', 3),
    Trips(_GROUPS, 1, call=r'InputLayer\(steps\)'), Trips(_GROUPS, 8 * 12, 'FFMA', 'OutputTile'),
    Trips(_GROUPS, 8), Trips(_TILES, 1))
_OF_CORRECTION = (Trips('where < 3', 3),)


def _propagation(part, route, times, kernel, trips=()):
    return Launch(part, ('resident_propagation.cu',), 'ResidentKernelILi2ELi16', 'Silu', 8,
                  _RESIDENT + trips, (), _STEPS + Route((r'load\([02]\)|\? matrix\[', r'Stored\(|kHiddenTiles>\($')) + route, times, (('kernel', kernel),) if kernel else (), blocks=125)


# A pass of one launch: a block composes eight intervals, the first of each eight blocks their nodes; a
# vector goes through fourteen groups, which the last block has before it.
def _grid_pass(vectors, forms):
    return (Trips(r'at < count_ \* kFours', 2, call=r'Fetch<W \* W'), Trips(r'at < count_ \* kFours', 1),
            Trips('size = 1; size < count', 3 if forms else 0),
            Trips('v = warps - 1 - warp', 0 if forms else 1, warps=vectors, from_last=True),
            Trips('int i = 1; i < count', 14, call='WalkGroups'), Trips('int i = 1; i < count', 7),
            Trips(r'at < \(last - first\) \* \(W', 8 if forms else 0, call=r'places_\.Prefix'),
            Trips(r'at < \(last - first\) \* \(W', 1 if forms else 0),
            *((Trips(r'at < \(last - first\) \* kEl', 3, call=r'places_\.Prefix'),) if vectors > 1 else ()),
            Trips(r'begin \+= kTogether', 2, call=r'Await<W \* W>.*1, group'), Trips(r'begin \+= kTogether', 1),
            Trips(r'v = warp_; v < kind', 1, warps=vectors))


_GRID_PASSES = r'HasStopped\(\)\) \{'
_OF_VECTORS = ('Fetch<kVectors', 'Await<kVectors', 'GiveVectors<kVectors')
_OF_ONE = (r'Fetch<W, kV', 'Await<W>', 'GiveVectors<W>')
_GRID_FULL = Route(_OF_VECTORS + ('ResidentProbes<', r'Return\(next', 'confirms', 'AfterConfirmation'), (r'vectors\(\) == 1 \?',))
_GRID_CORRECTION = Route(_OF_ONE + (r'StepColumns\(steps', r'Return\(next', 'ComposePair|kBeforeGridRound', 'confirms', 'AfterConfirmation'))
_GRID_CONFIRMATION = Route(_OF_VECTORS + (r'StepColumns\(steps', 'ResidentProbes<', 'ComposePair|kBeforeGridRound', 'AfterNewtonPass'),
                           (r'vectors\(\) == 1 \?',))
# Matrices come with the vectors that a block has awaited, or were there before.
_GRID_MEMORY = (('LDG', r'Await<W \* W>|AwaitBefore', 'l2'), ('LDG', 'AwaitAllNumbered|AwaitNumbered', 'exchange'))


def _grid_solve(full, corrections, confirmations):
    def passes(times, route, vectors, forms=False, trips=()):
        return Trips(_GRID_PASSES, times, route=route, inner=_RESIDENT[2:] + trips + _grid_pass(vectors, forms))
    return Launch('solve', ('resident_solve.cu',), 'ResidentSolveKernelILi16ELi16', 'Silu', 8,
                  (passes(full, _GRID_FULL, 1, True), passes(corrections, _GRID_CORRECTION, _VECTORS, trips=_OF_CORRECTION),
                   passes(confirmations, _GRID_CONFIRMATION, 1)) + _RESIDENT[:2] +
                  (Trips(r'at < \(count_ \+ 1\) \* W', 1), Trips('i < kVectors', 1)), _GRID_MEMORY,
                  _STEPS + Route((r'load\([02]\)|\? matrix\[', r'Stored\(|kHiddenTiles>\($', 'LoadVolatile')),
                  row=(('kernel', 'resident_solve'),), blocks=125)


# A pass of a stack: by blocks that have ten layers each in shared memory, of which four warps take columns
# through them; helpers, which compose eight nodes; and the block between thirteen groups, of which vectors go
# through eleven. The rules of a full pass, of a correction, and of a confirmation.
_OF_STATE, _OF_GROUP, _OF_TOTALS = Trips('l = 0; l < steps', 10), Trips('int i = 1; i < count', 7), Trips('int g = 1; g < last', 11)
_INTERVAL_PASSES = ((Trips('l = 0; l < steps', 10, call='TakeColumns', warps=4), _OF_STATE),
                    (Trips(r'l = at\.begin', 10), Trips(r'at < kind\.vectors', 2)), (_OF_STATE,))
_HELPER_PASSES = ((Trips('i = 0; i < count', 7), _OF_GROUP), (_OF_GROUP,), (_OF_GROUP,))
_TOTAL_PASSES = ((Trips('i = 0; i < count', 11), _OF_TOTALS), (_OF_TOTALS,), (_OF_TOTALS,))
_STACK_MEMORY = (('LDG', 'AwaitMatrices', 'l2'), ('LDG', 'AwaitAllNumbered|AwaitNumbered', 'exchange'))
_OF_INTERVAL = ('Lead<', 'TakeThroughGroups<')
_OF_HELPERS = (r'propagate\(', r'stack\.Propagate', r'Give\(kind', 'Enter<', 'GiveOutcome', 'UpdateAs<', 'PlaceGuess', 'CopyLayers', 'KeepStates', 'AfterLinearPass', r'Advance\(kind', r'AwaitAllNumbered\(pairs', r'AwaitNumbered\(halo')
_ONE = (r'vectors\(\) == 1 \?',)
_NO_PRODUCTS = (r'if \(composes\) Compose',)
_RESIDUAL_STACK = (r': f\(StepRule<ActivationType, false',)
_STACK_FULL = Route(_RESIDUAL_STACK + (r'TakeWithProbes\(rule', r'FactorsAre::kSplit>\(steps', r'Return\(next', 'confirms', 'AfterConfirmation'), _ONE)
_STACK_CORRECTION = Route(_RESIDUAL_STACK + (r'Multiply\(weights', r'RowOf\(', r'FinishStep\(rule, row', r'TakeColumns<', 'AwaitMatrices', r'Return\(next', 'confirms', 'AfterConfirmation'), _NO_PRODUCTS)
_STACK_CONFIRMATION = Route(_RESIDUAL_STACK + (r'TakeWithProbes\(rule', r'TakeColumns<', 'SlopeAt', 'AwaitMatrices', 'AfterNewtonPass'), _ONE + _NO_PRODUCTS)


def _stack_solve(part, avoid, rules, others=(), beside=False):
    passes = ((2, _STACK_FULL), (1, _STACK_CORRECTION), (2, _STACK_CONFIRMATION))
    return Launch(part, ('resident_stack_solve.cu',), 'ResidentStackKernel', 'Relu', 8,
                  tuple(Trips(_GRID_PASSES, times, route=route + Route(avoid), inner=inner)
                        for (times, route), inner in zip(passes, rules)) + others,
                  _STACK_MEMORY, Route(avoid + ('LoadVolatile',)), blocks=130, beside=beside)


def _rest(part, route, times, vectors):
    return Launch(part, ('newton_kernel.cu',), 'NewtonKernelILi16ELNS1_6KernelE5', 'Silu', 16,
                  _w4_tree(vectors), _W4_MEMORY, route + Route((r'if \(!ahead\)', 'PlaceGuess', 'FormPrefixes', 'EnterByPrefix')), times)


_NODES = (('prefix of an interval', Trips(r'k = warp_; k < tree_', 1)),
          ('node on the way up', Trips(r'k = warp;', 1)),
          ('two nodes of the chain', Trips('j = 1; j < last', 1)),
          ('way down', Trips(r'k = warp_; k < in_block', 1)))

# P = 128 over 16 blocks of 8 warps, three levels to the 16 nodes of the chain.
_W3 = (Trips('l = begin;', 2 * 32, 'FFMA'), Trips(r'l = begin \+ 1', 7), Trips('level = 1', 3),
       Trips(r'begin = context\.thread', 1), Trips(r'j < own', _VECTOR_FMA * 15, 'FFMA'),
       Trips(r'j < last', 0), _down(3, 1), Trips(r'l \+ 1 - begin', 2))
# Parameters: a layer's block has two warps, and a multiprocessor eight of the 1024 blocks.
# Layers of an interval are read three times by the same block, of which the first time is from the L2.
_W3_MEMORY = (('LDG', 'StoreProduct|Transposed', 'l1'), ('LD', '', 'dsmem'), ('ST', '', 'dsmem'))

# A warp of a block has a panel, of 64 groups in all layers but the input's; eight warps write what a
# norm gives, 512 threads await two elements each. A block copies its panels before the first step.
_W5 = (Trips(r'l = args\.begin', 100), Trips(r'i < d_\.num_blocks', 3), Trips('i < resident', 6),
       Trips(r'panel = team\.place', 1), Trips(r'i = 4 \* context\.thread', 4, call='Copy'),
       Trips('sample = 0', 1), Trips(r'own \+= ', 0), Trips(_TILES, 1, warps=1),
       Trips('kAhead <= groups_', 0, call='InputLayer'), Trips(_GROUPS_LEFT, 1, call='InputLayer'),
       Trips('kAhead <= groups_', 4), Trips(_GROUPS_LEFT, 0), Trips(r'k = 2 \* context_\.thread', 1),
       Trips(r'\+ kAhead - 1|\(kAhead - 1\)', 1, warps=1), Trips(r'; i < end; i \+= kWarpSize', 0),
       Trips(r'kLineFloats; i <', 1, warps=2), Trips(r'4 \* context_\.thread', 1, warps=8))
_W5_MEMORY = (('LDG', 'AwaitNumbered', 'exchange'), ('LDG', r'LoadConstants\(gains', 'l1'))

WORKLOADS = (
    Workload('W1 sequential', 'L = 1024, D = 16, relu', (
        Launch('steps', ('sequential_kernel.cu',), 'SequentialKernelILi16', 'Relu', 1,
               (Trips('chunk = 0', 128), Trips(r'l = args_\.begin', 0)),
               row=(('kernel', 'sequential'), ('workload', 'W1'))),),
        others=2, per=1024, hot=(('layers', Trips('chunk = 0', 1)),)),
    Workload('W1 Newton', 'C = 8: 3.7 full passes, 1 correction and 2.1 confirmations', (
        Launch('passes', ('newton_kernel.cu',), 'NewtonKernelILi16ELNS1_6KernelE3', 'Relu', 8,
               (Trips(_PASSES, 3.7, route=_FULL, inner=_w1_pass(1, 3)),
                Trips(_PASSES, 1, route=_CORRECTION, inner=_w1_pass(_VECTORS)),
                Trips(_PASSES, 2.1, route=_CONFIRMATION, inner=_w1_pass(1)), Trips('first < state_dim', 2)), _W1_MEMORY, _W1,
               row=(('kernel', 'newton'), ('workload', 'W1'), ('guess', 'affine'), ('shooting_interval', 8), ('warps', 8))),), others=2,
        hot=(
            ('layer of an interval', Trips('k = 0; k < steps', 1)), *_NODES,
            ('update of an interval', Trips(r'i = warp_', 1, call='UpdateInterval')))),
    Workload('W6 sequential', 'L = 1024, D = 64, relu', (
        Launch('steps', ('panel_step.cu',), 'PanelSequentialKernelILi4', 'Relu', 8,
               (Trips(r'left = args_\.end', 128),),
               row=(('kernel', 'panel_sequential'), ('workload', 'W6'), ('state_dim', 64))),),
        others=2, per=1024, hot=(('eight layers', Trips(r'left = args_\.end', 1)),)),
    Workload('W6 Newton', 'C = 10: 2 full passes, 1 correction and 2 confirmations in one launch', (
        _stack_solve('solve', _OF_INTERVAL, _INTERVAL_PASSES, (Trips(r'i < floats; i \+= 4', 40, call='weights_'), Trips(r'i < floats; i \+= 4', 1))),
        _stack_solve('helper of a group', _OF_HELPERS + ('TakeThroughGroups<',), _HELPER_PASSES, beside=True),
        _stack_solve('block between groups', _OF_HELPERS + ('Lead<',), _TOTAL_PASSES, beside=True)), others=2,
        hot=(('layer of probes', Trips(r'l = at\.begin', 1)), ('layer of tangents', Trips('l = 0; l < steps', 1, call='TakeColumns')),
             ('layer of a state', Trips('l = 0; l < steps', 1)),
             ('node of a group', Trips('int i = 1; i < count', 1)), ('group on the way', Trips('int g = 1; g < last', 1)))),
    Workload('W3 backward', 'C = 8: the scan with all deltas, then the gradients of parameters', (
        Launch('scan', ('backward_kernel.cu',), 'BackwardScanKernelILi16ELb0', 'Relu', 8, _W3, _W3_MEMORY, Route((r', column\);', 'at / count_', r'column \+ warps_'), (r'if \(l < begin\) return g;',)),
               row=(('kernel', 'backward_scan'), ('shooting_interval', 8), ('warps', 8))),
        Launch('parameters', ('backward_kernel.cu',), 'ParameterGradientKernel', 'Relu', 16,
               (Trips('share = context', 1), Trips(r's \+ 4 <= args', 0), Trips(r'; s < args', 1)), (), Route(('SumOuterProducts<1>',)))),
        others=0, hot=(
            ('slopes of four layers', Trips('l = begin;', 1)),
            ('product with a layer', Trips(r'l = begin \+ 1', 1)),
            ('node on the way up', Trips(r'j = context_\.warp', 1)),
            ('two nodes of the chain', Trips(r'j < own', 1)),
            ('four layers back', Trips(r'l \+ 1 - begin', 1)))),
    Workload('W4 sequential', 'L = 1000, D = 16, H = 128, silu', (
        Launch('steps', _DIFFUSION, 'HeldSequentialKernel', 'Silu', 16,
               (Trips(r'l = args\.begin', 1000), Trips(_BLOCKS, 0)) + _PANELS, _PREFETCHED, _STEPS,
               row=(('kernel', 'held_sequential'),)),),
        others=2, per=1000, hot=(
            ('step', Trips(r'l = args\.begin', 1)),)),
    Workload('W5 sequential', 'L = 100, D = 16, adaLN, H = 1024, silu', (
        Launch('steps', ('grid_steps.cu',), 'GridStepsKernel', 'Silu', 16, _W5, _W5_MEMORY, Route(('StreamedBlocks', r'LoadConstants\(weights_')),
               row=(('kernel', 'grid_steps'),)),),
        others=2, per=100, hot=(
            ('step', Trips(r'l = args\.begin', 1)), ('sixteen groups of a layer', Trips('kAhead <= groups_', 1)))),
    Workload('W4 Newton', 'C = 1: the coarse guess, and in one launch 3.5 full passes, 1.2 corrections and 2.3 confirmations', (
        Launch('guess', _DIFFUSION, 'HalfCoarseKernelILi8', 'Silu', 8,
               (Trips('begin = 0', 16), Trips(r'i = context\.thread', 1, warps=1)) + _HELD, _PREFETCHED,
               _STEPS + _HALVES,
               row=(('kernel', 'half_coarse_guess'),)),
        _grid_solve(3.5, 1.2, 2.3)),
        others=2, hot=(
            ('layer of states', Trips(_TILES, 1, call='BlockOfStates')),
            ('its weights and states', Trips(_GROUPS, 1, call='BlockOfStates')),
            ('layer of tangents', Trips(r'b = 0; b < d_\.num_blocks; \+\+b\) (Block\(b|\{)', 1)),
            ('group of blocks on the way', Trips('int i = 1; i < count', 1, call='WalkGroups')))),
    Workload('W4 Newton in parts', 'the same, where a GPU cannot do it in one launch: two a pass', (
        Launch('guess', _DIFFUSION, 'HalfCoarseKernelILi8', 'Silu', 8,
               (Trips('begin = 0', 16), Trips(r'i = context\.thread', 1, warps=1)) + _HELD, _PREFETCHED,
               _STEPS + _HALVES,
               row=(('kernel', 'half_coarse_guess'),)),
        _propagation('full propagation', Route(('ResidentProbes<',)), 3.5, 'resident_propagation'),
        _propagation('propagation of a correction', Route((r'StepColumns\(steps',)), 1.2, 'resident_correction',
                     _OF_CORRECTION),
        _propagation('propagation of a confirmation', Route((r'StepColumns\(steps', 'ResidentProbes<')), 2.3, ''),
        _rest('rest of a full pass', _FULL, 3.5, 1), _rest('rest of a correction', _CORRECTION_IN_PARTS, 1.2, _VECTORS),
        _rest('rest of a confirmation', _CONFIRMATION_IN_PARTS, 2.3, 1)),
        others=2, hot=(
            ('layer of states', Trips(_TILES, 1, call='BlockOfStates')),
            ('its weights and states', Trips(_GROUPS, 1, call='BlockOfStates')),
            ('layer of tangents', Trips(r'b = 0; b < d_\.num_blocks; \+\+b\) (Block\(b|\{)', 1)), *_NODES)),
)


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """The most instructions of a kind that a round of a loop may have, or of them per one of another
    kind. A change that lowers a count lowers its ceiling."""
    workload: str
    loop: str   # regular expression of the loop's own line
    kind: str
    most: float
    per: str = ''
    part: str = ''  # regular expression of the launches' parts


CEILINGS = (
    Ceiling('W1 sequential', '', 'spill', 0),
    Ceiling('W1 Newton', '', 'spill', 0),
    Ceiling('W6 sequential', '', 'spill', 0),
    Ceiling('W6 sequential', r'left = args_\.end', 'LDS.128', 8 * 8),  # weights and states
    Ceiling('W6 Newton', _GRID_PASSES, 'spill', 15),  # of what a thread keeps over a pass of some 60,000 cycles
    Ceiling('W6 Newton', r'l < steps|int i = 1; i < count|int g = 1', 'spill', 0),
    Ceiling('W6 Newton', '', 'fence', 0),
    Ceiling('W3 backward', '', 'spill', 0),
    Ceiling('W3 backward', r'l = begin \+ 1', 'LDG.64', 8),
    Ceiling('W4 sequential', '', 'spill', 20),  # weights that a thread holds from step to step
    Ceiling('W5 sequential', '', 'spill', 0),
    Ceiling('W5 sequential', '', 'fence', 0),
    Ceiling('W5 sequential', r'i < d_\.num_blocks', 'barrier', 6),
    Ceiling('W4 Newton in parts', 'begin = 0', 'spill', 0),
    # Addresses, read once a step of some 50,000 cycles.
    Ceiling('W4 Newton in parts', r'job = context_\.warp|shooting_interval', 'spill', 26),
    Ceiling('W4 Newton in parts', r'tile = team|j < groups_|b < d_|k = warp|level', 'spill', 3),
    Ceiling('W4 Newton in parts', 'level', 'fence', 1),
    # What a thread keeps over a pass, or reads again in one, of some 40,000 cycles.
    Ceiling('W4 Newton', _GRID_PASSES, 'spill', 80),
    Ceiling('W4 Newton', r'tile = team|j < groups_|int i = 1; i < count', 'spill', 5),
    Ceiling('W4 Newton', r'b < d_', 'spill', 28),  # of probes, in some 7,000 cycles
    Ceiling('W4 Newton', '', 'fence', 0),
    Ceiling('W1 Newton', _PASSES, 'fence', 2),
    Ceiling('W1 Newton', _PASSES, 'cluster barrier', 2),
    Ceiling('W1 Newton', _PASSES, 'LD.32', 11),
    Ceiling('W1 Newton', r'k = warp_; k < tree_', 'LD.32', 0),  # the intervals of a block lie in its own memory
    Ceiling('W1 Newton', r'b = context\.block', 'LD.128', 0),  # nodes are sent, not fetched
    Ceiling('W4 Newton in parts', _GROUPS, 'LDS.128', 0.34, 'FFMA', 'propagation'),
    # Two products a load, and the input layer: weights lie in registers.
    Ceiling('W4 Newton in parts', 'begin = 0', 'LDS.128', 0.52, 'HMMA', 'guess'),
)
