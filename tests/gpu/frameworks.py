#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch and JAX take on a GPU for the models of the ladder: the rungs below ours.

The same weights and inputs as solver_bench; a call takes its inputs from host memory and leaves its
outputs there, as a call of the engine does. Describes itself in a line of JSON, then answers every
line of standard input with a round: the seconds of every timed call, by group and candidate. Every
candidate's outputs are compared with the engine's (--outputs_dir, written by solver_bench) before
anything is timed. What cannot run here is named with its reason.

  eager            a loop over nn.Linear
  CUDA graph       the same loop, captured once and replayed
  torch.compile    of networks of at most 256 layers, within 60 seconds
  JAX scan         lax.scan, compiled
  JAX Newton       the parallel solve as a few lines of lax.associative_scan, compiled
"""

import json
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests/bench'))

import torch_ladder as ladder  # noqa: E402  pylint: disable=wrong-import-position

import numpy as np  # noqa: E402
import torch  # noqa: E402

COMPILED_LAYERS, COMPILE_SECONDS = 256, 60
COMPILED_SAMPLES = 1  # each number of samples is compiled anew
NEWTON_ITERATIONS = 8  # enough for residual networks; outputs are checked like all others


def to_gpu(network, device):
    """The network as a function of host inputs to host outputs."""
    moved = network.to(device)

    def call(x):
        with torch.inference_mode():
            return moved(x.to(device)).cpu()
    return call


def captured(network, example, device):
    """One CUDA graph of the loop."""
    if device.type != 'cuda':
        raise RuntimeError('needs a GPU')
    moved = network.to(device)
    static_in = example.to(device)
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            moved(static_in)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        static_out = moved(static_in)

    def call(x):
        static_in.copy_(x)
        graph.replay()
        return static_out.cpu()
    return call


def compiled(network, example, device):
    if len(network.layers) > COMPILED_LAYERS:
        raise RuntimeError(f'more than {COMPILED_LAYERS} layers')
    if device.type != 'cuda':
        raise RuntimeError('needs a GPU')
    if len(example) > COMPILED_SAMPLES:
        raise RuntimeError('compiled for one sample only')

    def give_up(*_):
        raise RuntimeError(f'not compiled within {COMPILE_SECONDS} s')
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(COMPILE_SECONDS)
    try:
        function = torch.compile(network.to(device), mode='reduce-overhead')
        with torch.inference_mode():
            for _ in range(3):
                function(example.to(device))
    finally:
        signal.alarm(0)

    def call(x):
        with torch.inference_mode():
            return function(x.to(device)).cpu()
    return call


def arrays_of(network):
    def values(layer):
        return layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy()
    weights, biases = zip(*(values(layer) for layer in network.layers))
    return {'encode': values(network.encode), 'decode': values(network.decode),
            'weights': np.stack(weights), 'biases': np.stack(biases)}


def jax_step(network):
    import jax.numpy as jnp
    act = jnp.tanh if isinstance(network.act, torch.nn.Tanh) else lambda a: jnp.maximum(a, 0)

    def step(z, layer):
        weight, bias = layer
        a = act(weight @ z + bias)
        return z + network.scale * a if network.residual else a
    return step


def jax_function(network, solve):
    """encode, solve(step, z0, layers), decode; compiled for one sample and mapped over a batch."""
    import jax
    import jax.numpy as jnp
    jax.config.update('jax_default_matmul_precision', 'highest')
    parameters = jax.device_put(arrays_of(network))
    step = jax_step(network)

    def one(parameters, x):
        weight, bias = parameters['encode']
        z = solve(step, weight @ x + bias, (parameters['weights'], parameters['biases']))
        weight, bias = parameters['decode']
        return weight @ z + bias
    function = jax.jit(jax.vmap(one, in_axes=(None, 0)))

    def call(x):
        return torch.from_numpy(np.array(function(parameters, jnp.asarray(x.numpy()))))
    return call


def scan(step, z0, layers):
    import jax
    return jax.lax.scan(lambda z, layer: (step(z, layer), None), z0, layers)[0]


def newton(step, z0, layers):
    """DeepPCR as published, one step per interval, without its stopping rule."""
    import jax
    import jax.numpy as jnp

    def compose(first, second):
        return second[0] @ first[0], jnp.einsum('lij,lj->li', second[0], first[1]) + second[1]

    def iterate(states, _):
        before = jnp.concatenate([z0[None], states[:-1]])
        propagated = jax.vmap(step)(before, layers)
        jacobians = jax.vmap(jax.jacfwd(step))(before, layers)
        jacobians = jacobians.at[0].set(0)
        residual = propagated - states
        return states + jax.lax.associative_scan(compose, (jacobians, residual))[1], None
    steps = layers[1].shape[0]
    states = jnp.broadcast_to(z0, (steps, z0.shape[0]))
    return jax.lax.scan(iterate, states, None, length=NEWTON_ITERATIONS)[0][-1]


def candidates(network, example, device):
    """Names and functions, and what could not be built, with the reason."""
    return built({'eager': lambda: to_gpu(network, device),
                  'CUDA graph': lambda: captured(network, example, device),
                  'torch.compile': lambda: compiled(network, example, device),
                  'JAX scan': lambda: jax_function(network, scan),
                  'JAX Newton': lambda: jax_function(network, newton)}, example)


def built(builders, example):
    made, missing = [], {}
    for name, build in builders.items():
        started = time.perf_counter()
        try:
            call = build()
            call(example)
            made.append((name, call))
        except Exception as error:  # pylint: disable=broad-except  # another rung may still run
            missing[name] = (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
        print(f'{name}: {missing.get(name, "ready")} after {time.perf_counter() - started:.1f} s',
              file=sys.stderr, flush=True)
    return made, missing


def add_checked(group, name, call, batches, expected):
    """A rung that answers wrongly is left out, and says so."""
    try:
        got = np.concatenate([call(batch).numpy() for batch in batches])
    except Exception as error:  # pylint: disable=broad-except  # another rung may still run
        group.missing[name] = str(error).strip().splitlines()[-1][:200]
        return
    difference = ladder.largest_difference(got, expected[:len(got)])
    if not difference <= ladder.TOLERANCE:
        group.missing[name] = f'its outputs differ by {difference:.2g}'
        return
    group.made.append((name, lambda turn: call(batches[turn % len(batches)])))
    group.timed.append([])
    group.differences.append(difference)


def captured_sampler(sampler, drawn, device):
    """One CUDA graph of all steps, with what can be precomputed; drawn: [n, L + 1, D] on the host."""
    if device.type != 'cuda':
        raise RuntimeError('needs a GPU')
    static = drawn.to(device)
    n = len(static)

    def solve():
        return sampler.precomputed(n, lambda step, _: static[:, step + 1])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        solve()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = solve()

    def call(noise):
        static.copy_(noise)
        graph.replay()
        return out.cpu()
    return call


def eager_sampler(sampler, device):
    def call(noise):
        on_device = noise.to(device)
        return sampler.eager(len(noise), lambda step, _: on_device[:, step + 1]).cpu()
    return call


def diffusion_groups(folder, config, tensors, expected, arguments, device):
    """Noise comes from the host: what a user draws on the GPU instead takes no longer."""
    name = folder.parent.name
    scheduler = json.loads((folder / 'scheduler_config.json').read_text(encoding='utf-8'))
    sampler = ladder.torch_diffusion.Sampler(config, scheduler, tensors, device)
    drawn = torch.from_numpy(np.load(arguments.outputs_dir / f'{name}-noise.npy'))
    drawn = drawn.reshape(len(expected), len(sampler.steps) + 1, config['state_dim'])
    for samples in map(int, arguments.drawn_samples.split(',')):
        print(f'{name}, {samples} samples', file=sys.stderr, flush=True)
        batches = [drawn[i:i + samples] for i in range(0, min(len(drawn), 4 * samples), samples)]
        made, missing = built({'eager': lambda: eager_sampler(sampler, device),
                               'CUDA graph': lambda b=batches: captured_sampler(
                                   sampler, b[0], device)}, batches[0])
        group = ladder.Group(name, samples, missing)
        for candidate, call in made:
            add_checked(group, candidate, call, batches, expected)
        yield group


def groups_of(folder, inputs, arguments, device):
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    tensors = ladder.safetensors_file.read(folder / 'model.safetensors')
    name = folder.parent.name
    expected = np.load(arguments.outputs_dir / f'{name}.npy')
    if config['model_type'] == 'diffusion':
        yield from diffusion_groups(folder, config, tensors, expected, arguments, device)
        return
    for samples in map(int, arguments.samples.split(',')):
        print(f'{name}, {samples} samples', file=sys.stderr, flush=True)
        network = ladder.Network(config, tensors).eval()
        batches = [inputs[i:i + samples] for i in range(0, len(expected) - samples + 1, samples)]
        made, missing = candidates(network, batches[0], device)
        group = ladder.Group(name, samples, missing)
        for candidate, call in made:
            add_checked(group, candidate, call, batches, expected)
        yield group


def main():
    arguments = ladder.follower_parser(__doc__, 'of the repository', '1,64', 0.1).parse_args()
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    inputs = torch.from_numpy(np.load(arguments.inputs).astype(np.float32))
    groups = []
    for model in arguments.models.split(','):
        groups += groups_of(arguments.model_repository / model / '1', inputs, arguments, device)
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'
    ladder.follow({'device': f'torch-{torch.__version__} on {name}'}, groups, arguments.seconds)


if __name__ == '__main__':
    main()
