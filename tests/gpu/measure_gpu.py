#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the GPU benchmarks one by one and collects them in one result file; called by run.sh.

usage: measure_gpu.py --bundle DIR --out DIR --part kernels|ladder|sweep|service [--part ...]

Writes OUT/results.json, in the form that deploy/readme_tables.py reads, and OUT/results.md. A part
that fails is named in both; the others still run. Run again with other parts, it adds to the file.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in ('tests/bench', 'deploy/models/digits', 'deploy')]

import ladder_models  # noqa: E402  pylint: disable=wrong-import-position
import cpu_tables as shared  # noqa: E402  pylint: disable=wrong-import-position
import measure_cpu  # noqa: E402  pylint: disable=wrong-import-position
import readme_tables  # noqa: E402  pylint: disable=wrong-import-position

MODELS = 'digits-resnet,digits-mlp,digits-ddpm'
W1, W4 = ('digits-resnet', 1), ('digits-ddpm', 1)
ROUNDS = 7
# Seconds that each part may take; run.sh stops the whole before its own limit.
LIMITS = {'kernels': 90, 'ladder': 200, 'sweep': 120, 'service': 60}


def output_of(*command):
    """The first line, or nothing where the command fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ''
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ''


def machine():
    text = output_of('nvidia-smi', '--query-gpu=name,driver_version', '--format=csv,noheader')
    name, _, driver = text.partition(', ')
    return name or 'no GPU', driver


def commit(bundle):
    file = bundle / 'COMMIT'
    return file.read_text(encoding='utf-8').strip() if file.exists() else measure_cpu.commit()


# ---- Kernels by events
def best_kernels(rows):
    """The fastest launch of each kernel for each system, by shooting interval at its best."""
    best = {}
    for row in rows:
        if not row['converged'] and row['kernel'] != 'sequential':
            continue
        key = row['num_layers'], row['state_dim'], row['samples'], row['kernel']
        if key not in best or row['median_us'] < best[key]['median_us']:
            best[key] = row
    return best


def kernels_table(best):
    rows = []
    for (layers, dim, samples, kernel), row in sorted(best.items()):
        if kernel != 'newton':
            continue
        sequential = best[layers, dim, samples, 'sequential']
        rows.append([layers, dim, samples, sequential['median_us'],
                     1e3 * sequential['median_us'] / layers, row['median_us'],
                     row['shooting_interval'], row['blocks'], row['warps'],
                     row['iterations'] + row['corrections'],
                     sequential['median_us'] / row['median_us']])
    return {'name': 'gpu-kernels',
            'note': 'Device time by events, random residual networks of scale 1/sqrt(L), constant '
                    'guess, rtol 1e-4.',
            'columns': ['L', 'D', 'samples', 'sequential us', 'ns per layer', 'newton us', 'C',
                        'blocks', 'warps', 'passes', 'newton speed-up'], 'rows': rows}


def backward_table(best):
    rows = []
    for (layers, dim, samples, kernel), row in sorted(best.items()):
        if kernel not in ('backward_scan', 'backward_scan_parameters'):
            continue
        sequential = best[layers, dim, samples, kernel.replace('scan', 'sequential')]
        rows.append([layers, dim, samples, 'yes' if kernel.endswith('parameters') else 'no',
                     sequential['median_us'], row['median_us'], row['shooting_interval'],
                     row['blocks'], row['warps'], sequential['median_us'] / row['median_us']])
    return {'name': 'gpu-backward',
            'note': 'Gradients by the initial state and all deltas of a given trajectory; device '
                    'time by events, random residual networks of scale 1/sqrt(L).',
            'columns': ['L', 'D', 'samples', 'by parameters too', 'sequential us', 'scan us', 'C',
                        'blocks', 'warps', 'scan speed-up'], 'rows': rows}


def run_kernels(arguments, results):
    done = subprocess.run([arguments.bundle / 'bin/kernel_trial', 'time'], capture_output=True,
                          text=True, timeout=LIMITS['kernels'], check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    results['kernels'] = rows
    best = best_kernels(rows)
    results['tables'] = [kernels_table(best), backward_table(best)]


# ---- The ladder
def ladder_followers(arguments, folder):
    wide = ladder_models.write_wide_model(pathlib.Path(folder))
    common = ['--models', f'{MODELS},{wide}', '--samples', arguments.samples, '--drawn_samples',
              arguments.drawn_samples, '--outputs_dir', folder]
    inputs = str(arguments.inputs)
    engine = measure_cpu.Follower('solver_bench', [
        str(arguments.bundle / 'bin/solver_bench'), '--backend', 'cuda', '--keep_going',
        '--follow', '--seconds', '0.05', '--in', inputs, *common])
    yield engine
    try:
        yield measure_cpu.Follower('frameworks.py', [
            sys.executable, str(ROOT / 'tests/gpu/frameworks.py'), '--seconds', '0.1', '--inputs',
            inputs, *common])
    except SystemExit as error:  # the rungs of the engine are worth having without frameworks
        print(f'left out: {error}', flush=True)


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


def add_speedups(rows):
    """Against our sequential solver, within each round."""
    for row in rows:
        base = next((r for r in rows if (r['model'], r['samples'], r['name']) ==
                     (row['model'], row['samples'], 'sequential')), None)
        ratios = shared.ratios_of(base, row) if base else []
        if not ratios:
            continue
        row['speedup'] = statistics.median(ratios)
        row['speedup_range'] = [min(ratios), max(ratios)]


def run_ladder(arguments, results):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        followers = list(ladder_followers(arguments, folder))
        started = time.monotonic()
        for number in range(ROUNDS):
            if time.monotonic() - started > LIMITS['ladder'] / 2:
                break
            turn = number % len(followers)
            for follower in followers[turn:] + followers[:turn]:
                follower.run_round()
        for follower in followers:
            follower.close()
            shared.collect(follower, rows)
    add_speedups(rows)
    results['ladder'] = rows
    results['missing'] = [{'model': g['model'], 'samples': g['samples'], **g['missing']}
                          for f in followers for g in f.description['groups'] if g['missing']]
    wrong = [f"{g['model']} {name}: {why}" for g in results['missing'] for name, why in g.items()
             if str(why).startswith('wrong: ')]
    if wrong:  # reported beside the figures of the others
        results['failed']['ladder'] = '; '.join(wrong)[:500]
    workloads = dict.fromkeys((r['model'], r['samples']) for r in rows)
    results['tables'] = [ladder_table(rows, *w) for w in workloads]


# ---- The sweep
def run_sweep(arguments, results):
    with tempfile.NamedTemporaryFile(suffix='.json') as file:
        # The sweep writes what it has measured even if an answer was wrong.
        status = subprocess.run([arguments.bundle / 'bin/sweep_bench', '--backend', 'cuda',
                                 '--samples', '1,8,64,256', '--seconds', '0.02', '--max_seconds',
                                 str(LIMITS['sweep'] - 30), '--json', file.name],
                                timeout=LIMITS['sweep'], check=False).returncode
        sweep = json.load(open(file.name, encoding='utf-8'))
    results['sweep'] = sweep
    if status != 0:
        results['failed']['sweep'] = f'sweep_bench ended with status {status}'
    table = shared.sweep_table(sweep)
    left_out = len(sweep['left_out'])
    table.update(name='gpu-sweep', note='Random residual networks, B samples; where the speed-up '
                                        'is below 1 sequential is the faster. Last: the solver '
                                        'that auto took, and its time over that of the best. '
                                        f'{left_out} models left out for want of time.')
    results['tables'] = [table]


# ---- The service
class Server:
    """The bundle's server on the GPU with the demo models that it can take."""

    def __init__(self, bundle, folder, out):
        self.log = open(out / 'server.log', 'w', encoding='utf-8')
        self.ports = pathlib.Path(folder) / 'ports'
        self.process = subprocess.Popen(
            [bundle / 'bin/deeppcr-server', '--backend', 'cuda', '--model_repository',
             str(bundle / 'models'), '--listen', '127.0.0.1:0', '--http_listen', '127.0.0.1:0',
             '--port_file', str(self.ports)], stdout=self.log, stderr=subprocess.STDOUT)

    def await_ports(self):
        for _ in range(600):
            if self.ports.exists():
                return json.loads(self.ports.read_text(encoding='utf-8'))
            if self.process.poll() is not None:
                raise RuntimeError(f'the server ended with status {self.process.returncode}')
            time.sleep(0.1)
        raise RuntimeError('the server is not up after 60 s')

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def run_service(arguments, results):
    with tempfile.TemporaryDirectory() as folder, \
            Server(arguments.bundle, folder, arguments.out) as server:
        ports = server.await_ports()
        inputs = ['--in', str(arguments.inputs)]

        def deeppcr(command, *flags):
            return subprocess.run(
                [arguments.bundle / 'bin/deeppcr', command, 'digits-resnet', '--server',
                 f"127.0.0.1:{ports['grpc_port']}", *inputs, *flags],
                check=True, timeout=40, capture_output=True, text=True).stdout
        labels = {solver: deeppcr('forward', '--labels', '--solver', solver)
                  for solver in ('sequential', 'newton', 'auto')}
        if len(set(labels.values())) > 1:
            raise RuntimeError('the solvers disagree about the labels')
        bench = deeppcr('bench', '--seconds', '5')
        url = f"http://127.0.0.1:{ports['http_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as reply:
            (arguments.out / 'metrics.txt').write_bytes(reply.read())
        status = server.stop()
        results['service'] = {'exit_status': status, 'bench': bench.splitlines()}
        if status != 0:
            raise RuntimeError(f'the server ended with status {status}')
    results['tables'] = []


# ---- Targets of DESIGN section 5
def rung_of(ladder, workload, name):
    return next((r for r in ladder if (r['model'], r['samples'], r['name']) == (*workload, name)),
                None)


def diffusion_targets(ladder):
    best, sequential = rung_of(ladder, W4, 'auto'), rung_of(ladder, W4, 'sequential')
    if best is None:
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
    back = best.get((1024, 16, 1, 'backward_scan_parameters'))
    if back is None:
        return []
    sequential = best[1024, 16, 1, 'backward_sequential_parameters']
    ratio = sequential['median_us'] / back['median_us']
    return [shared.target('W3 backward kernels', '<= 12 us', f"{back['median_us']:.1f} us",
                          back['median_us'] <= 12),
            shared.target('W3 backward against sequential', '>= 4x', f'{ratio:.2f}x', ratio >= 4)]


def targets(results):
    lines = []
    best = best_kernels(results.get('kernels', []))
    w1, w2 = best.get((1024, 16, 1, 'sequential')), best.get((16384, 16, 1, 'sequential'))
    newton, deep = best.get((1024, 16, 1, 'newton')), best.get((16384, 16, 1, 'newton'))
    if w1:
        nanoseconds = 1e3 * w1['median_us'] / 1024
        lines.append(shared.target('sequential kernel, D = 16, per layer', '<= 65 ns',
                                   f'{nanoseconds:.1f} ns', nanoseconds <= 65))
    if newton:
        ratio = w1['median_us'] / newton['median_us']
        lines.append(shared.target('W1 newton kernel', '<= 25 us', f"{newton['median_us']:.1f} us",
                                   newton['median_us'] <= 25))
        lines.append(shared.target('W1 newton against sequential', '>= 2.5x', f'{ratio:.2f}x',
                                   ratio >= 2.5))
    if deep:
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


PARTS = {'kernels': run_kernels, 'ladder': run_ladder, 'sweep': run_sweep, 'service': run_service}


def write(arguments, results, tables):
    results['tables'] = tables + [targets(results)]
    (arguments.out / 'results.json').write_text(json.dumps(results, indent=1) + '\n',
                                                encoding='utf-8')
    lines = [f"# {results['machine']}, {results['date']}, commit {results['commit']}\n"]
    for table in results['tables']:
        lines.append(f"\n## {table['name']}\n\n{table['note']}\n")
        lines += readme_tables.markdown_rows(table)
    lines += [f'\nFAILED: {part}: {why}' for part, why in results['failed'].items()]
    (arguments.out / 'results.md').write_text('\n'.join(lines) + '\n', encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bundle', type=pathlib.Path, required=True)
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--part', action='append', choices=list(PARTS), required=True)
    parser.add_argument('--samples', default='1,8,64')
    parser.add_argument('--drawn_samples', default='1,64', help='of diffusion models')
    parser.add_argument('--inputs', type=pathlib.Path,
                        default=ROOT / 'deploy/models/data/digits_heldout.npy')
    arguments = parser.parse_args()
    name, driver = machine()
    file = arguments.out / 'results.json'
    results = json.loads(file.read_text(encoding='utf-8')) if file.exists() else {'failed': {}}
    tables = [t for t in results.get('tables', []) if t['name'] != 'gpu-targets']
    results.update(date=datetime.date.today().isoformat(), machine=name, driver=driver,
                   commit=commit(arguments.bundle), command=' '.join(sys.argv[1:]))
    for part in arguments.part:
        print(f'\n== {part}', flush=True)
        started = time.monotonic()
        results['failed'].pop(part, None)
        try:
            PARTS[part](arguments, results)
            for table in results['tables']:
                shared.print_table(table)
            names = [table['name'] for table in results['tables']]
            tables = [table for table in tables if table['name'] not in names] + results['tables']
        except (Exception, SystemExit) as error:  # pylint: disable=broad-except  # others may run
            results['failed'][part] = f'{type(error).__name__}: {error}'[:500]
            print(f'FAILED: {part}: {error}', flush=True)
        print(f'-- {part}: {time.monotonic() - started:.0f} s', flush=True)
        write(arguments, results, tables)
    shared.print_table(results['tables'][-1])
    sys.exit(1 if results['failed'] else 0)


if __name__ == '__main__':
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    main()
