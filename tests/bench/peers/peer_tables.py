# SPDX-License-Identifier: Apache-2.0
"""The tables of the peers: from the rows that measure_peers.py writes to what a reader sees."""

WANTED_BYTES_RATIO = 1.25
COLUMNS = ['samples', 'engine', 'form', 'min us', 'median us', 'times C loop, minima',
           'times C loop, in turns', 'times ours, minima', 'times ours, in turns',
           'ahead of ours', 'load or compile s', 'max relative error', 'version']
WHAT = {
    'W1': 'W1: digits-resnet, trained (L = 1024, D = 16).',
    'W4': 'W4: digits-ddpm, trained (DDPM, 1000 steps, D = 16, a denoiser of 3 residual blocks 128 '
          'wide).',
    'W5': 'W5: adaln-3x1024, random weights (DDIM, 100 steps, D = 16, an adaLN denoiser of 3 '
          'blocks 1024 wide).'}
NOTE = ('In process, fp32, every candidate by one thread on the same core, in a process of its '
        'own. Everybody gets the same inputs, noise and embedding of the timestep (ours computes '
        'the embedding at load), and every answer is compared with float64 before it is timed: a '
        'wrong one gets no time. Each call takes turns with one of the plain C loop and one of '
        'ours: "in turns" is the median of the ratios within a turn. Native calls are timed in C, '
        'those of Python packages in Python. Load or compile: a first one, without imports.')
OURS, AUTO = 'DeepPCR Serve', 'auto'
BYTES = 'reads the weights only'


def is_ours(row):
    return row['engine'] == OURS


def is_peer(row):
    return not is_ours(row) and row['form'] != BYTES


def ahead(row):
    """Of ours as `auto` runs it: by both ratios, by one, or by none."""
    if 'to_ours' not in row or not is_peer(row):
        return ''
    below = [name for name, key in (('minima', 'min'), ('turns', 'paired'))
             if row['to_ours'][key] < 1]
    return {0: 'no', 1: f'by {" ".join(below)}', 2: 'YES'}[len(below)]


def form_of(row):
    """What ran; of a row without a time also why."""
    setting = row.get('setting') or ''
    shown = row['form'] if setting in ('', row['form']) else f'{row["form"]}: {setting}'
    if row['status'] == 'measured':
        return shown
    reason = f' ({row["reason"]})' if 'reason' in row else ''
    return f'{shown}: {row["status"]}{reason}'


def cells(row):
    if row['status'] != 'measured':
        status = {'wrong': 'wrong', 'no answer': row.get('reason', 'no answer')}
        return [row['samples'], row['engine'], form_of(row),
                status.get(row['status'], row['status']), *[''] * 7, row.get('error', ''),
                row.get('version', '')]
    to_c, to_ours = row['to_c_loop'], row.get('to_ours', {'min': '', 'paired': ''})
    if is_ours(row) and row['form'] == AUTO:
        to_ours = {'min': 1, 'paired': 1}
    return [row['samples'], row['engine'], form_of(row), row['min_us'], row['median_us'],
            to_c['min'], to_c['paired'], to_ours['min'], to_ours['paired'], ahead(row),
            row['load_s'], row['error'] if row['form'] != BYTES else 'no answer, reads only',
            row['version']]


def order(row):
    """Ours first, then by time; what has none comes last."""
    return (row['samples'], not (is_ours(row) and row['form'] == AUTO),
            row.get('min_us', float('inf')))


def workload_table(workload, rows):
    return {'name': f'peers-{workload.lower()}', 'note': f'{WHAT[workload]} {NOTE}',
            'columns': COLUMNS, 'rows': [cells(row) for row in sorted(rows, key=order)]}


def bytes_table(rows):
    """Ours against what only reads the same bytes."""
    found = [row for row in rows if row.get('to_bytes')]
    return {'name': 'peers-bytes',
            'note': 'Ours, one sample, in turns with a C loop that only reads the weights that '
                    'each step multiplies with, in the same order: what the memory allows. Met: by both '
                    'ratios.',
            'columns': ['workload', 'ours, min us', 'reading alone, min us', 'ratio of minima',
                        'in turns', 'wanted', 'met'],
            'rows': [[row['workload'], row['min_us'], row['bytes_min_us'], row['to_bytes']['min'],
                      row['to_bytes']['paired'],
                      f'<= {WANTED_BYTES_RATIO}' if row['workload'] == 'W4' else 'no target',
                      max(row['to_bytes'].values()) <= WANTED_BYTES_RATIO
                      if row['workload'] == 'W4' else ''] for row in found]}


def ahead_table(rows):
    """Who is faster than ours, and by how much: nobody has to look for it."""
    found = [row for row in rows if ahead(row) not in ('', 'no')]
    return {'name': 'peers-ahead',
            'note': 'Every measured candidate that was faster than ours (`auto`), by the ratio of '
                    'the minima or by the median of the ratios within turns.',
            'columns': ['workload', 'samples', 'engine', 'form', 'times ours, minima',
                        'times ours, in turns', 'ahead of ours'],
            'rows': [[row['workload'], row['samples'], row['engine'], form_of(row),
                      row['to_ours']['min'], row['to_ours']['paired'], ahead(row)]
                     for row in found]}


def tables_of(rows):
    """One for each workload that has rows, who is ahead, and the bytes."""
    made = [workload_table(workload, mine) for workload in WHAT
            if (mine := [row for row in rows if row['workload'] == workload])]
    return [*made, ahead_table(rows), bytes_table(rows)]
