# SPDX-License-Identifier: Apache-2.0
"""The tables of public models: from what measure_models.py measured to what a reader sees."""

import pathlib

CACHE = pathlib.Path('/sys/devices/system/cpu/cpu0/cache/index2/size')
# Wanted of ours, times as fast, by whether the step's weights fit the second-level cache.
WANTED = {True: {('PyTorch', 1): 20, ('PyTorch', 64): 2, ('ONNX Runtime', 1): 2,
                 ('ONNX Runtime', 8): 2, ('ONNX Runtime', 64): 2},
          False: {('PyTorch', 1): 3, ('PyTorch', 64): 1.1}}
# Times what reading the weights takes, or the arithmetic of the layers: at the floor.
FLOOR = 1.25
NOTE = ('Public models, written anew at their published sizes, trained for seconds and exported by '
        'torch.onnx.export, by one thread on one core and in turns: ours in process, step by step '
        '(`sequential`); the loop of a sampler in PyTorch under no_grad; ONNX Runtime called for '
        'each step on the same file. The same noise, and every answer was compared with float64 '
        'before it was timed. Times ours: median of the ratios within turns. Weights: of the '
        'layers that multiply with the state. Reading alone: those bytes read once for each step '
        'by a C loop, the floor of one sample where they fit no cache. Multiplying alone: as many '
        'multiply-adds as those layers have for all samples and steps, by a C loop on registers, the '
        'floor of many samples; activations come on top of it. Where the weights fit the '
        'second-level cache, wanted are 20 times PyTorch for one sample, 2 times for 64, and 2 '
        'times ONNX Runtime; elsewhere 3 and 1.1 times PyTorch, unless the row is at a floor: at most '
        '1.25 times multiplying, or reading where the weights do not fit. What is missed is less than '
        'multiplying or reading takes where nothing could reach it. ')


def second_level_cache():
    """Bytes, or 0 where the system does not say."""
    if not CACHE.exists():
        return 0
    text = CACHE.read_text(encoding='utf-8').strip()
    return int(text[:-1]) * {'K': 1 << 10, 'M': 1 << 20}[text[-1]]


def judged(row, fits):
    """What is wanted of a row and not met; empty where nothing is wanted."""
    wanted = {engine: least for (engine, samples), least in WANTED[fits].items()
              if samples == row['samples']}
    if not wanted:
        return ''
    missed = {engine: least for engine, least in wanted.items()
              if row['times'][engine]['paired'] < least}
    if not missed:
        return 'yes'
    floors = ['multiplying'] if fits else ['multiplying', 'reading']
    if min(1 / row['times'][floor]['paired'] for floor in floors) <= FLOOR:
        return 'at the floor'
    said = ', '.join(f'{engine} {least} x' for engine, least in missed.items())
    return f'no: {said}{below_a_floor(row, missed)}'


def below_a_floor(row, missed):
    """Names what alone takes longer than is wanted of all together."""
    for floor in ('multiplying', 'reading'):
        if any(row['times'][engine]['paired'] / least < row['times'][floor]['paired']
               for engine, least in missed.items()):
            return f', less than {floor} takes'
    return ''


def times_cells(row, cache):
    fits = row['step_bytes'] <= cache
    us, times = row['min_us'], row['times']
    return [row['title'], row['samples'], row['steps'], f'{row["step_bytes"] / 1024:.0f}',
            fits, us['ours'], us['PyTorch'], times['PyTorch']['paired'], us['ONNX Runtime'],
            times['ONNX Runtime']['paired'], us['reading'], 1 / times['reading']['paired'],
            us['multiplying'], 1 / times['multiplying']['paired'], judged(row, fits),
            max(row['errors'].values()), row['errors']['ours']]


def times_table(rows, cache, versions):
    return {'name': 'models',
            'note': f'{NOTE}L2: {cache // 1024} KiB. {versions}.',
            'columns': ['model', 'samples', 'steps', 'weights, KiB', 'fit L2', 'ours, min us',
                        'PyTorch, min us', 'PyTorch, times ours', 'ONNX Runtime, min us',
                        'ONNX Runtime, times ours', 'reading alone, min us',
                        'ours, times reading', 'multiplying alone, min us',
                        'ours, times multiplying', 'met', 'largest error of all', 'error of ours'],
            'rows': [times_cells(row, cache) for row in rows]}


def arithmetic_table(models):
    """Of the programs that describe() found for prepared models."""
    rows = []
    for prepared in models:
        program = prepared.program
        rows.append([prepared.model.title, sum(program.written), program.written_share,
                     sum(program.optimised), program.optimised_share, program.left,
                     *program.optimised[:3]])
    return {'name': 'models-arithmetic',
            'note': 'Published sizes, one sample and step, as `deeppcr-server --check --verbose` '
                    'counts multiply-adds. Left: in the step, of all that was written. What '
                    'depends on the time alone is made at load, on the condition once for a '
                    'request, on both for 64 steps at a time.',
            'columns': ['model', 'as written', '% in the step', 'optimised', '% in the step',
                        'left, %', 'on time', 'on condition', 'on both'],
            'rows': rows}
