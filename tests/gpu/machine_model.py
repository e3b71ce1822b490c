#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts what the GPU kernels take from the instructions that nvcc made of them.

Compiles the kernels for sm_90, disassembles them, walks each as the workloads of
tests/gpu/model/workloads.py do, and adds up what tests/gpu/model/machine.py says an H200 takes for
that. No GPU is needed: nvcc and nvdisasm are (nvidia-cuda-nvdisasm on PyPI).
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent / 'model'))

import machine  # noqa: E402
import sass  # noqa: E402
import walk  # noqa: E402
import workloads  # noqa: E402

RESULTS = ROOT / 'tests/bench/results/machine-model/predicted.json'
FLAGS = ('-cubin', '-arch=sm_90', '-std=c++17', '-fmad=false', '--expt-relaxed-constexpr', '-lineinfo')


def find(name, given):
    """Path of a tool, or None."""
    if given:
        return given
    wheel = sorted((ROOT / 'build/nvdisasm/lib').glob('python3*/site-packages/nvidia/cu13/bin'))
    places = [*map(str, wheel), os.environ.get('PATH', ''), '/usr/local/cuda/bin']
    return shutil.which(name, path=os.pathsep.join(places))


class Kernels:
    """Kernels of the files of a source tree that have one of these names."""

    def __init__(self, names, sources, nvcc, nvdisasm, scratch, kept):
        self.sources, self.nvcc, self.nvdisasm, self.scratch, self.kept = sources, nvcc, nvdisasm, scratch, kept
        files = [source for source in sorted((sources / 'kernels/cuda').rglob('*.cu')) if source.name in names]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            texts = pool.map(self._disassemble, files)
            self.read = {file: sass.read_kernels(text) for file, text in zip(files, texts)}

    def _cubin(self, source):
        if self.kept:
            room = self.kept / source.parent.relative_to(self.sources / 'kernels/cuda')
            return room / f'{source.stem}.sm_90.cubin'
        cubin = self.scratch / (source.relative_to(self.sources).as_posix().replace('/', '_') + '.cubin')
        if not cubin.exists():
            say(f'compiling {source.relative_to(self.sources)}')
            subprocess.run([self.nvcc, *FLAGS, f'-I{self.sources}', str(source), '-o', str(cubin)],
                           check=True)
        return cubin

    def _disassemble(self, source):
        cubin = self._cubin(source)
        return subprocess.run([self.nvdisasm, '-c', '-hex', '-gi', str(cubin)], check=True,
                              capture_output=True, text=True).stdout

    def find(self, names, part):
        for source, kernels in self.read.items():
            if source.name in names:
                for kernel in kernels:
                    if part in kernel.name:
                        return kernel
        raise SystemExit(f'machine_model: workloads.py names a kernel {part} in {" or ".join(names)},'
                         ' and there is none')


def flat(passages):
    for passage in passages:
        yield passage
        for mark in passage.marks[-1:]:
            yield from flat(mark.loops)


@dataclasses.dataclass
class Part:
    launch: workloads.Launch
    cycles: int    # of one launch
    busy: dict     # unit -> cycles
    passages: list
    alone: list    # the passages where one warp has the multiprocessor to itself
    missed: list   # rules of the workload for loops that it does not meet


def predict(workload, kernels):
    """(cycles of the workload, its Parts)."""
    parts, total = [], workload.others * workloads.LAUNCH_CYCLES
    for launch in workload.launches:
        way = walk.Walk(kernels.find(launch.sources, launch.kernel), launch.activation)
        result, alone = (way.launch(warps, launch.where, launch.trips, launch.route)
                         for warps in (launch.warps, 1))
        waves = -(-launch.blocks // workloads.MULTIPROCESSORS)
        parts.append(Part(launch, result.cycles * waves,
                          {unit: waves * held for unit, held in result.busy.items()},
                          list(flat(result.loops)), list(flat(alone.loops)), result.missed))
        launching = 0 if launch.beside else workloads.LAUNCH_CYCLES
        total += launch.times * (result.cycles * waves + launching)
    return total, parts


def microseconds(cycles):
    return cycles / machine.CLOCK_GHZ / 1000


def measured(launch):
    """Microseconds that the GPU of the newest results took for a launch, or ''."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.parents[1].glob('*/*.json'))]
    rows = [row for result in sorted(found, key=lambda result: result['date']) for row in result.get('kernels', [])
            if launch.row and all(row.get(key) == value for key, value in launch.row)]
    return rows[-1]['median_us'] if rows else ''


def own_line(passage):
    return passage.name.partition(' | ')[0]


def hot(workload, parts):
    """(part, what a loop is, its passages, those of a warp alone) of the loops that the table shows:
    one where the instructions of a round are the same."""
    for part in parts:
        alike = {}
        for passage, alone in zip(part.passages, part.alone):
            what = next((what for what, trips in workload.hot if trips.fits(passage.name)), None)
            if what is not None:
                alike.setdefault((what, tuple(sorted(passage.counts.items()))), []).append((passage, alone))
        for (what, _), passages in alike.items():
            yield part, what, *zip(*passages)


def span(numbers):
    low, high = round(min(numbers)), round(max(numbers))
    return str(low) if low == high else f'{low} to {high}'


def sum_of(counts, *kinds):
    return ' + '.join(f'{counts[kind]} {kind}' for kind in kinds if counts[kind]) or '0'


def tables_of(predictions):
    """The tables of tests/gpu/README.md, for deploy/readme_tables.py."""
    times, loops = [], []
    for workload, total, parts in predictions:
        each = f', {1000 * microseconds(total) / workload.per:.0f} ns each' if workload.per > 1 else ''
        times.append([workload.name, workload.what, f'{microseconds(total):.0f} us{each}', '', ''])
        for part in parts:
            unit, held = max(part.busy.items(), key=lambda item: item[1])
            times.append(['', f'{part.launch.times} x {part.launch.part}',
                          f'{microseconds(part.cycles):.1f} us each', f'{unit}, {microseconds(held):.1f} us',
                          f'{measured(part.launch):.1f} us' if measured(part.launch) else ''])
        for part, what, passages, alone in hot(workload, parts):
            counts = passages[0].counts
            loops.append([f'{workload.name}, {part.launch.part}', what,
                          span([passage.each for passage in alone]), span([passage.each for passage in passages]),
                          counts['FFMA'],
                          sum_of(counts, 'LDG.32', 'LDG.128', 'LD.32', 'LD.64', 'LD.128', 'LDS.32',
                                 'LDS.64', 'LDS.128'),
                          counts['SHFL'], sum_of(counts, 'barrier', 'cluster barrier', 'fence'),
                          counts['spill']])
    return [
        {'name': 'gpu-predicted', 'note': NOTE, 'rows': times,
         'columns': ['workload', 'part', 'predicted', 'busiest unit, and for how long', 'measured']},
        {'name': 'gpu-hot-loops', 'rows': loops, 'note': LOOPS_NOTE,
         'columns': ['workload', 'loop', 'chain, cycles', 'round, cycles', 'FMA', 'loads', 'SHFL',
                     'barriers and fences', 'spills']}]


NOTE = 'Measured: the GPU of the newest results below. 1.98 GHz; 1.5 us from one launch to the next.'
LOOPS_NOTE = ('One round of each hot loop on its way, inner loops left out of the counts. Chain: by a warp'
              ' alone on its multiprocessor; round: beside the other warps of its block.')


def complaints(predictions):
    found = [f'{workload.name}, {part.launch.part}: no loop is one of {trip.key}'
             for workload, _, parts in predictions for part in parts for trip in part.missed]
    for ceiling in workloads.CEILINGS:
        matched = False
        for workload, _, parts in predictions:
            if workload.name != ceiling.workload:
                continue
            for passage in (passage for part in parts if re.search(ceiling.part, part.launch.part)
                            for passage in part.passages):
                if not re.search(ceiling.loop, own_line(passage)):
                    continue
                matched = True
                count = passage.counts[ceiling.kind]
                most = ceiling.most * passage.counts[ceiling.per] if ceiling.per else ceiling.most
                if count > most:
                    found.append(f'{ceiling.workload}: {count} {ceiling.kind} in a round of'
                                 f' "{own_line(passage)}", at most {most:g} allowed')
        if not matched:
            found.append(f'{ceiling.workload}: no loop matches {ceiling.loop!r}')
    return list(dict.fromkeys(found))


def version_of(nvcc):
    text = subprocess.run([nvcc, '--version'], check=True, capture_output=True, text=True).stdout
    return 'instructions of nvcc ' + re.search(r'release [\d.]+, V([\d.]+)', text)[1] + ' for sm_90'


def show(tables):
    for table in tables:
        print(table['note'])
        for row in (table['columns'], *table['rows']):
            print('  ' + ' | '.join(map(str, row)))


def check(predictions, tables, version, path):
    """Exit status: the ceilings, and the committed tables where they are of this nvcc."""
    found = complaints(predictions)
    committed = json.loads(path.read_text())
    if committed['machine'] != version:
        say(f'{path.relative_to(ROOT)} is of {committed["machine"]}: not compared with {version}')
    elif committed['tables'] != json.loads(json.dumps(tables)):
        found.append(f'{path.relative_to(ROOT)} is not what the kernels give now: run machine_model.py --write')
    for line in found:
        say(line)
    say(f'{len(workloads.CEILINGS)} ceilings, {len(found)} complaints')
    return 1 if found else 0


def say(line):
    sys.stderr.write(f'{line}\n')  # in one piece: compilers run side by side
    sys.stderr.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--sources', type=pathlib.Path, default=ROOT, help='a tree of this project')
    parser.add_argument('--nvcc', help='default: that of PATH or /usr/local/cuda')
    parser.add_argument('--nvdisasm', help='default: that of build/nvdisasm, PATH or /usr/local/cuda')
    parser.add_argument('--scratch', type=pathlib.Path, help='keep what is compiled there')
    parser.add_argument('--kept', type=pathlib.Path,
                        help='compile nothing: take what a build of the preset test has kept there'
                        ' (build/test/kernels/cuda/kept)')
    parser.add_argument('--check', action='store_true',
                        help='fail above a ceiling, or where the committed tables are not of these kernels')
    parser.add_argument('--write', action='store_true', help='write the tables, and those of the README')
    args = parser.parse_args()
    nvcc, nvdisasm = find('nvcc', args.nvcc), find('nvdisasm', args.nvdisasm)
    for name, path in (('nvcc', nvcc), ('nvdisasm', nvdisasm)):
        if path is None:
            raise SystemExit(f'machine_model: no {name} (see --{name})')
    with tempfile.TemporaryDirectory() as scratch:
        if args.scratch:
            args.scratch.mkdir(parents=True, exist_ok=True)
        names = {name for workload in workloads.WORKLOADS for launch in workload.launches for name in launch.sources}
        kernels = Kernels(names, args.sources.resolve(), nvcc, nvdisasm, args.scratch or pathlib.Path(scratch),
                          args.kept)
        predictions = [(workload, *predict(workload, kernels)) for workload in workloads.WORKLOADS]
    tables = tables_of(predictions)
    if args.check:
        sys.exit(check(predictions, tables, version_of(nvcc), RESULTS))
    if not args.write:
        return show(tables)
    sys.path.insert(0, str(ROOT / 'tests/bench'))
    import measure_cpu  # needs NumPy, which a check is to do without
    import result_file
    result = {'how': 'Predicted', 'date': datetime.date.today().isoformat(), 'machine': version_of(nvcc),
              'commit': measure_cpu.commit(), 'tables': tables}
    result_file.write(RESULTS, result)
    subprocess.run([ROOT / 'deploy/readme_tables.py'], check=True)


if __name__ == '__main__':
    main()
