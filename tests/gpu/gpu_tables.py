# SPDX-License-Identifier: Apache-2.0
"""The tables of the GPU benchmarks: from what the steps printed to what a reader sees.

Every table stands for what is there so far: a run may have ended in the midst of any list.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ('tests/bench', 'tests/gpu/model')]

import cpu_tables as shared  # noqa: E402  pylint: disable=wrong-import-position
import ladder_models  # noqa: E402  pylint: disable=wrong-import-position
import machine  # noqa: E402  pylint: disable=wrong-import-position
import sass  # noqa: E402  pylint: disable=wrong-import-position
import workloads  # noqa: E402  pylint: disable=wrong-import-position

W1, W4 = ('digits-resnet', 1), ('digits-ddpm', 1)


# ---- What the machine model assumes
def held(opcode, place=''):
    """Cycles that the model lets an instruction hold its unit."""
    return machine.cost(sass.Instruction(0, '', opcode, '', 1, -1, -1, 0, ()), place)[2]


def assumptions():
    """(assumed, unit) by the name of the micro-benchmark that measures it, those of
    machine.LATENCY first."""
    latencies = machine.LATENCY
    launch = workloads.LAUNCH_CYCLES / machine.CLOCK_GHZ / 1000
    return {**{name: (cycles, 'cycles') for name, cycles in latencies.items()},
            'taken_branch': (machine.TAKEN_BRANCH, 'cycles'),
            'cluster_sync': (latencies['fence'] + latencies['cluster'] + latencies['invalidate'],
                             'cycles'),
            'lds128_broadcast': (held('LDS.128'), 'cycles held'),
            'ldg128_l1': (held('LDG.E.128', 'l1'), 'cycles held'),
            'ldg128_l2': (held('LDG.E.128', 'l2'), 'cycles held'),
            'shuffle_rate': (held('SHFL'), 'cycles held'),
            'clock': (machine.CLOCK_GHZ, 'GHz'),
            'launch': (launch, 'us')}


def micro_table(rows):
    """What the model assumes beside what was measured, and what it assumes nothing about."""
    measured = {}
    for row in rows:
        measured.setdefault(row['name'], []).append(row)
    lines = []
    for name, (assumed, unit) in assumptions().items():
        for row in measured.pop(name, None) or [None]:
            if row is None:
                lines.append([name, '', unit, assumed, 'not measured', ''])
            else:
                lines.append([name, row['what'], unit, assumed, row['value'], row['value'] / assumed])
    for name, found in measured.items():
        lines += [[name, row['what'], row['unit'], '', row['value'], ''] for row in found]
    return {'name': 'gpu-micro',
            'note': 'Least of the repetitions, in cycles of the multiprocessor.',
            'columns': ['name', 'by', 'unit', 'assumed', 'measured', 'measured / assumed'],
            'rows': lines}


# ---- Kernels by events
def best_kernels(rows):
    """The fastest launch of each kernel for each system, by shooting interval at its best."""
    best = {}
    for row in rows:
        if not row['converged'] and row['kernel'] != 'sequential':
            continue
        key = (row['workload'], row['num_layers'], row['state_dim'], row['samples'], row['kernel'])
        if key not in best or row['median_us'] < best[key]['median_us']:
            best[key] = row
    return best


def kernels_table(best):
    rows = []
    for (workload, layers, dim, samples, kernel), row in sorted(best.items()):
        sequential = best.get((workload, layers, dim, samples, 'sequential'))
        if kernel != 'newton' or sequential is None:
            continue
        rows.append([workload, row['activation'], row['guess'], layers, dim, samples, sequential['median_us'],
                     1e3 * sequential['median_us'] / layers, row['median_us'],
                     row['shooting_interval'], row['blocks'], row['warps'],
                     row['iterations'] + row['corrections'],
                     sequential['median_us'] / row['median_us']])
    return {'name': 'gpu-kernels',
            'note': 'Device time by events over launches one behind the other, random residual '
                    'networks of scale 1/sqrt(L), rtol 1e-4.',
            'columns': ['workload', 'f', 'guess', 'L', 'D', 'samples', 'sequential us', 'ns per layer', 'newton us', 'C',
                        'blocks', 'warps', 'passes', 'newton speed-up'], 'rows': rows}


def backward_table(best):
    rows = []
    for (*system, kernel), row in sorted(best.items()):
        _, layers, dim, samples = system
        sequential = best.get((*system, kernel.replace('scan', 'sequential')))
        if kernel not in ('backward_scan', 'backward_scan_parameters') or sequential is None:
            continue
        rows.append([layers, dim, samples, 'yes' if kernel.endswith('parameters') else 'no',
                     sequential['median_us'], row['median_us'], row['shooting_interval'],
                     row['blocks'], row['warps'], sequential['median_us'] / row['median_us']])
    return {'name': 'gpu-backward',
            'note': 'Gradients by the initial state and all deltas of a given trajectory; device '
                    'time by events, random residual networks of scale 1/sqrt(L).',
            'columns': ['L', 'D', 'samples', 'by parameters too', 'sequential us', 'scan us', 'C',
                        'blocks', 'warps', 'scan speed-up'], 'rows': rows}


def diffusion_table(rows):
    """Kernels of a denoiser that a block's registers hold."""
    lines = [[r['kernel'], r['num_layers'], r['state_dim'], r['samples'], r['median_us'], r['min_us'],
              1e3 * r['median_us'] / r['num_layers'] if r['kernel'].endswith('sequential') else '']
             for r in rows if r['workload'] == 'W4']
    return {'name': 'gpu-diffusion-kernels',
            'note': 'Device time by events over launches one behind the other, residual denoiser of '
                    '3 blocks with H = 128, random weights, C = 1.',
            'columns': ['kernel', 'L', 'D', 'samples', 'median us', 'min us', 'ns per step'],
            'rows': lines}


# ---- The ladder
def ladder_row(row):
    iterations = row.get('mean_iterations', '')
    name = row['name'] + (f" ({row['solver']}, C = {row['shooting_interval']})"
                          if row.get('shooting_interval') else '')
    return [row['device'], name, 1e6 * row['median_seconds'], 1e6 * row['p99_seconds'],
            1e6 * row['min_seconds'], row.get('dependent_stages', ''), iterations,
            row.get('speedup', ''),
            shared.spread(row['speedup_range']) if 'speedup' in row else '']


def ladder_table(rows, model, samples):
    chosen = [r for r in rows if (r['model'], r['samples']) == (model, samples)]
    return {'name': f'gpu-{model}-{samples}',
            'note': 'Calls with host buffers, from the request to the answer.',
            'columns': ['device', 'rung', 'median us', 'p99 us', 'min us', 'dependent stages',
                        'iterations', 'times sequential', 'range over rounds'],
            'rows': [ladder_row(r) for r in chosen]}


# ---- The sweep
def sweep_table(sweep):
    table = shared.sweep_table(sweep)
    table.update(name='gpu-sweep', note='Random residual networks, B samples; where the speed-up '
                                        'is below 1 sequential is the faster. Last: the solver '
                                        'that auto took, and its time over that of the best. '
                                        f"{len(sweep['left_out'])} models left out for want of time.")
    return table


# ---- Targets of DESIGN section 5
def rung_of(ladder, workload, name):
    return next((r for r in ladder if (r['model'], r['samples'], r['name']) == (*workload, name)),
                None)


def diffusion_targets(ladder):
    best, sequential = rung_of(ladder, W4, 'auto'), rung_of(ladder, W4, 'sequential')
    if best is None or sequential is None:
        return []
    ratio = sequential['median_seconds'] / best['median_seconds']
    return [shared.target('W4 best solver, engine call', '<= 350 us',
                          f"{1e6 * best['median_seconds']:.0f} us",
                          best['median_seconds'] <= 350e-6),
            shared.target('W4 best solver against sequential', '>= 1.3x', f'{ratio:.2f}x',
                          ratio >= 1.3)]


def wide_targets(ladder):
    """W5: against what PyTorch makes of the same network."""
    lines = []
    for samples, name, wanted in ((1, 'eager', 15), (1, 'CUDA graph', 2), (64, 'eager', 8)):
        workload = (ladder_models.WIDE_MODEL, samples)
        ours, other = rung_of(ladder, workload, 'auto'), rung_of(ladder, workload, name)
        if ours and other:
            ratio = other['median_seconds'] / ours['median_seconds']
            lines.append(shared.target(f'W5, B = {samples}, auto against PyTorch {name}',
                                       f'>= {wanted}x', f'{ratio:.2f}x', ratio >= wanted))
    return lines


def sweep_targets(sweep):
    rows = sweep.get('rows', [])
    lines = []
    row = next((r for r in rows if r['newton_converged'] and
                (r['num_layers'], r['state_dim'], r['samples']) == (1024, 64, 1)), None)
    if row is not None:
        ratio = row['sequential_seconds'] / row['newton_seconds']
        lines.append(shared.target('W6 newton against sequential', '>= 1.3x', f'{ratio:.2f}x',
                                   ratio >= 1.3))
    if rows:
        over = [r['auto_over_best'] for r in rows]
        good = 100 * sum(o <= 1.05 for o in over) / len(over)
        lines.append(shared.target(f'W7 auto within 1.05x of the best, of {len(over)} points',
                                   '>= 95 %', f'{good:.0f} %', good >= 95))
        lines.append(shared.target('W7 auto over the best, at worst', '<= 1.25x',
                                   f'{max(over):.2f}x', max(over) <= 1.25))
    return lines


def backward_targets(best):
    back = best.get(('W3', 1024, 16, 1, 'backward_scan_parameters'))
    sequential = best.get(('W3', 1024, 16, 1, 'backward_sequential_parameters'))
    if back is None or sequential is None:
        return []
    ratio = sequential['median_us'] / back['median_us']
    return [shared.target('W3 backward kernels', '<= 12 us', f"{back['median_us']:.1f} us",
                          back['median_us'] <= 12),
            shared.target('W3 backward against sequential', '>= 4x', f'{ratio:.2f}x', ratio >= 4)]


def targets(results):
    lines = []
    best = best_kernels(results.get('kernels', []))
    w1, w2, steps = (best.get((workload, layers, 16, 1, 'sequential')) for workload, layers in
                     (('W1', 1024), ('W2', 16384), ('sequential', 1024)))
    newton, deep = (best.get((workload, layers, 16, 1, 'newton')) for workload, layers in
                    (('W1', 1024), ('W2', 16384)))
    if steps or w1:
        nanoseconds = 1e3 * (steps or w1)['median_us'] / 1024
        lines.append(shared.target('sequential kernel, D = 16, per layer', '<= 65 ns',
                                   f'{nanoseconds:.1f} ns', nanoseconds <= 65))
    if newton:
        lines.append(shared.target('W1 newton kernel', '<= 25 us', f"{newton['median_us']:.1f} us",
                                   newton['median_us'] <= 25))
    if newton and w1:
        ratio = w1['median_us'] / newton['median_us']
        lines.append(shared.target('W1 newton against sequential', '>= 2.5x', f'{ratio:.2f}x',
                                   ratio >= 2.5))
    if deep and w2:
        ratio = w2['median_us'] / deep['median_us']
        lines.append(shared.target('W2 newton against sequential', '>= 10x', f'{ratio:.2f}x',
                                   ratio >= 10))
    call = rung_of(results.get('ladder', []), W1, 'auto')
    if call:
        seconds = call['median_seconds']
        lines.append(shared.target('W1 engine call with host buffers', '<= 40 us',
                                   f'{1e6 * seconds:.1f} us', seconds <= 40e-6))
    lines += backward_targets(best)
    lines += diffusion_targets(results.get('ladder', []))
    lines += wide_targets(results.get('ladder', []))
    lines += sweep_targets(results.get('sweep', {}))
    return {'name': 'gpu-targets', 'note': '', 'columns': ['target', 'wanted', 'got', 'met'],
            'rows': lines}


def tables_of(results):
    """All tables for which something was measured, the targets last."""
    tables = []
    if results.get('micro'):
        tables.append(micro_table(results['micro']))
    if results.get('kernels'):
        best = best_kernels(results['kernels'])
        tables += [kernels_table(best), backward_table(best), diffusion_table(results['kernels'])]
    ladder = results.get('ladder', [])
    for workload in dict.fromkeys((r['model'], r['samples']) for r in ladder):
        tables.append(ladder_table(ladder, *workload))
    if results.get('sweep'):
        tables.append(sweep_table(results['sweep']))
    return [table for table in tables if table['rows']] + [targets(results)]
