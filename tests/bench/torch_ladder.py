#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch rungs of the CPU ladder: the same weights and inputs as solver_bench, on one core.

Diffusion models draw their noise in the loop, as users' code does; they are checked with the noise
that the engine drew. Which BLAS it multiplies with is the caller's choice, by LD_LIBRARY_PATH: the
one that came is named in the device.

Describes itself in a line of JSON, then answers every line of standard input with a round: the
seconds of every timed call, by group and candidate. Every candidate's outputs are compared with the
engine's (--outputs_dir, written by solver_bench) before anything is timed.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'deploy/models/digits'))
# The environment must be set before the framework starts its threads.
os.environ.update(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1')

import numpy as np  # noqa: E402
import torch  # noqa: E402

import safetensors_file  # noqa: E402
import torch_diffusion  # noqa: E402

# Tolerance of the outputs, relative to the largest one of the sample; both sides compute in
# float32.
TOLERANCE = 1e-4
# Untimed calls of each shape, in the first of which TorchScript compiles.
WARM_CALLS = 4
# Samples of a diffusion model that are checked one by one; a batch is checked as a whole.
CHECKED_ALONE = 2
# A candidate that takes longer than this is timed in the first few rounds only.
LONG_SECONDS, ROUNDS_OF_LONG = 0.4, 3
VERY_LONG_SECONDS, ROUNDS_OF_VERY_LONG = 3, 2
ACTIVATIONS = {'relu': torch.nn.ReLU, 'tanh': torch.nn.Tanh}


class Network(torch.nn.Module):
    """What a user writes: a list of nn.Linear, a loop."""

    def __init__(self, config, tensors):
        super().__init__()
        width, steps = config['state_dim'], config['num_layers']
        self.encode = linear(tensors['input.weight'], tensors.get('input.bias'))
        self.layers = torch.nn.ModuleList(
            linear(tensors['layers.weight'][i], tensors['layers.bias'][i]) for i in range(steps))
        self.decode = linear(tensors['output.weight'], tensors.get('output.bias'))
        self.act = ACTIVATIONS[config['activation']]()
        self.residual = config['model_type'] == 'resnet'
        self.scale = float(config.get('residual_scale', steps ** -0.5))
        assert self.layers[0].weight.shape == (width, width)

    def forward(self, x):
        z = self.encode(x)
        for layer in self.layers:
            if self.residual:
                z = z + self.scale * self.act(layer(z))
            else:
                z = self.act(layer(z))
        return self.decode(z)


def linear(weight, bias):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = torch.from_numpy(weight.copy())
    if bias is not None:
        layer.bias.data = torch.from_numpy(bias.copy())
    return layer


def under(mode, function):
    def call(x):
        with mode():
            return function(x)
    return call


def functional(network):
    """The loop without modules: the fewest Python steps that eager mode allows."""
    pairs = [(layer.weight, layer.bias) for layer in network.layers]
    act = torch.relu if isinstance(network.act, torch.nn.ReLU) else torch.tanh
    first, last, scale = network.encode, network.decode, network.scale
    product = torch.nn.functional.linear

    def residual(x):
        z = first(x)
        for weight, bias in pairs:
            z = torch.add(z, act(product(z, weight, bias)), alpha=scale)
        return last(z)

    def plain(x):
        z = first(x)
        for weight, bias in pairs:
            z = act(product(z, weight, bias))
        return last(z)

    return residual if network.residual else plain


def torchscript(network, example):
    """Traced once for all numbers of samples; and what could not be built, with the reason."""
    builders = {
        'TorchScript': lambda: torch.jit.trace(network, example, check_trace=False),
        'TorchScript frozen': lambda: torch.jit.optimize_for_inference(
            torch.jit.trace(network, example, check_trace=False)),
    }
    made, missing = [], {}
    for name, build in builders.items():
        try:
            with torch.no_grad():
                made.append((name, under(torch.inference_mode, build())))
        except RuntimeError as error:  # this version may lack it
            missing[name] = str(error).strip().splitlines()[-1]
    return made, missing


def candidates(network, example):
    """Names and functions, eager first."""
    made, missing = torchscript(network, example)
    return [('eager no_grad', under(torch.no_grad, network)),
            ('eager inference_mode', under(torch.inference_mode, network)),
            ('eager functional', under(torch.inference_mode, functional(network))),
            *made], missing


def largest_difference(got, expected):
    scale = np.abs(expected).max(axis=1)
    return float((np.abs(got - expected).max(axis=1) / scale).max())


class Group:
    """One model at one number of samples."""

    def __init__(self, name, samples, missing):
        self.name, self.samples, self.missing = name, samples, missing
        self.made, self.differences = [], []
        self.timed = []  # seconds by candidate, of all rounds

    def add(self, candidate, call, batches, expected):
        """Checks what a candidate makes of every batch; call() is what will be timed."""
        got = np.concatenate([batch().numpy() for batch in batches])
        difference = largest_difference(got, expected[:len(got)])
        if not difference <= TOLERANCE:
            sys.exit(f'torch_ladder.py: {self.name}, {candidate}: outputs differ by '
                     f'{difference:g} from the engine\'s, expected at most {TOLERANCE:g}')
        self.made.append((candidate, call))
        self.timed.append([])
        self.differences.append(difference)

    def describe(self):
        return {'model': self.name, 'samples': self.samples, 'missing': self.missing,
                'candidates': [{'name': name, 'max_output_difference': difference}
                               for (name, _), difference in zip(self.made, self.differences)]}

    def time_round(self, seconds):
        """In turns: one call untimed, then up to two timed, until each has had its seconds.

        A call that takes that long on its own needs no other to bring the caches back.
        """
        taken = [[] for _ in self.made]
        turn = 0
        skip = [(len(t) >= ROUNDS_OF_LONG and min(t) > LONG_SECONDS) or
                (len(t) >= ROUNDS_OF_VERY_LONG and min(t) > VERY_LONG_SECONDS)
                for t in self.timed]
        while any(not s and (sum(t) < seconds or not t) for s, t in zip(skip, taken)):
            for index, (_, call) in enumerate(self.made):
                if skip[index] or (taken[index] and sum(taken[index]) >= seconds):
                    continue
                untimed = time.perf_counter()
                call(turn)
                long = time.perf_counter() - untimed
                if long > seconds:
                    taken[index].append(long)
                    continue
                for _ in range(2):
                    start = time.perf_counter()
                    call(turn)
                    taken[index].append(time.perf_counter() - start)
            turn += 1
        for before, now in zip(self.timed, taken):
            before += now
        return taken


def stack_groups(name, config, tensors, inputs, arguments):
    network = Network(config, tensors).eval()
    expected = np.load(arguments.outputs_dir / f'{name}.npy')
    made, missing = candidates(network, inputs[:1])
    for samples in map(int, arguments.samples.split(',')):
        group = Group(name, samples, missing)

        def batch(first, count=samples):
            return inputs[first:first + count]

        for candidate, call in made:
            for _ in range(WARM_CALLS):
                call(batch(0))
            group.add(candidate,
                      lambda turn, call=call, batch=batch, samples=samples:
                      call(batch(turn * samples % (len(inputs) - samples + 1))),
                      [lambda i=i, call=call, batch=batch: call(batch(i))
                       for i in range(0, len(expected) - samples + 1, samples)], expected)
        yield group


def expected_seconds(sampler, samples):
    """Of a call, by the fastest of a few steps of it."""
    z, timestep = torch.zeros(samples, sampler.network.dim), torch.tensor([0])
    taken = []
    with torch.no_grad():
        for _ in range(5):
            start = time.perf_counter()
            sampler.network(z, timestep)
            taken.append(time.perf_counter() - start)
    return min(taken) * len(sampler.steps)


def diffusion_groups(name, config, tensors, folder, arguments):
    scheduler = json.loads((folder / 'scheduler_config.json').read_text(encoding='utf-8'))
    sampler = torch_diffusion.Sampler(config, scheduler, tensors)
    expected = np.load(arguments.outputs_dir / f'{name}.npy')
    steps = len(sampler.steps)
    drawn = torch.from_numpy(np.load(arguments.outputs_dir / f'{name}-noise.npy'))
    drawn = drawn.reshape(len(expected), steps + 1, config['state_dim'])
    for samples in map(int, arguments.drawn_samples.split(',')):
        seconds = expected_seconds(sampler, samples)
        left_out = seconds > arguments.longest
        reason = f'a call is expected to take {seconds:.1f} s'
        group = Group(name, samples, {c: reason for c, _ in sampler.candidates()} if left_out
                      else {})
        batches = range(0, samples * (CHECKED_ALONE if samples == 1 else 1), samples)
        for candidate, call in [] if left_out else sampler.candidates():
            group.add(candidate, lambda _, call=call, samples=samples: call(samples),
                      [lambda i=i, call=call, samples=samples:
                       call(samples, lambda step, n: drawn[i:i + n, step + 1]) for i in batches],
                      expected)
        yield group


def load_groups(arguments):
    inputs = torch.from_numpy(np.load(arguments.inputs).astype(np.float32))
    groups = []
    for model in arguments.models.split(','):
        folder = (pathlib.Path(model) if '/' in model else arguments.model_repository / model)
        name, folder = folder.name, folder / '1'
        config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
        tensors = safetensors_file.read(folder / 'model.safetensors')
        print(f'torch {name}: tracing and checking', file=sys.stderr, flush=True)
        if config['model_type'] == 'diffusion':
            groups += diffusion_groups(name, config, tensors, folder, arguments)
        else:
            groups += stack_groups(name, config, tensors, inputs, arguments)
    return groups


def blas():
    """The name of the library that matrix products go to, and its file."""
    maps = pathlib.Path('/proc/self/maps').read_text(encoding='utf-8')
    # The name decides: a liblapack of one package may be loaded beside the libblas of another.
    files = sorted({line.split()[-1] for line in maps.splitlines()
                    if line.split()[-1].rsplit('/', 1)[-1].startswith('libblas')})
    for sign, name in (('openblas', 'OpenBLAS'), ('blis', 'BLIS'), ('/blas/', 'reference BLAS')):
        for file in files:
            if sign in file:
                return name, file
    info = [part for part in torch.__config__.show().split() if part.startswith('BLAS_INFO=')]
    return (info[0].split('=')[1].strip(',') if info else 'unknown BLAS'), ''


def follower_parser(description, models, samples, seconds):
    """What every ladder of a framework is told; `models` is the help on them."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model_repository', type=pathlib.Path,
                        default=ROOT / 'deploy/models/repository')
    parser.add_argument('--inputs', type=pathlib.Path,
                        default=ROOT / 'deploy/models/data/digits_heldout.npy')
    parser.add_argument('--outputs_dir', type=pathlib.Path, required=True)
    parser.add_argument('--models', default='digits-resnet,digits-mlp,digits-ddpm', help=models)
    parser.add_argument('--samples', default=samples)
    parser.add_argument('--drawn_samples', default='1,64', help='of diffusion models')
    parser.add_argument('--seconds', type=float, default=seconds, help='per candidate and round')
    return parser


def follow(description, groups, seconds):
    """Says what will be timed, then answers every line of standard input with a round."""
    print(json.dumps({**description, 'groups': [group.describe() for group in groups]}),
          flush=True)
    for _ in sys.stdin:
        print(json.dumps([group.time_round(seconds) for group in groups]), flush=True)


def main():
    parser = follower_parser(__doc__, 'of the repository, or folders of models', '1,8,64', 0.2)
    parser.add_argument('--longest', type=float, default=12,
                        help='seconds; a diffusion model whose call takes longer is left out')
    parser.add_argument('--core', type=int, default=-1, help='to run on; -1: the last one')
    arguments = parser.parse_args()

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1] if arguments.core < 0 else arguments.core})
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    warnings.filterwarnings('ignore')
    groups = load_groups(arguments)
    blas_name, blas_file = blas()
    follow({'device': f'torch-{torch.__version__}, {blas_name}', 'python': sys.version.split()[0],
            'threads': torch.get_num_threads(), 'blas': blas_file,
            'torch_config': torch.__config__.show()}, groups, arguments.seconds)


if __name__ == '__main__':
    main()
