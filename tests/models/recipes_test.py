#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the pages of deploy/models/recipes: their Python writes a model, their command samples it.

usage: recipes_test.py --server_binary PATH --client_binary PATH [--recipes NAME...]

Networks have drawn weights and small sizes. On the same noise, the samples of sequential, newton and
picard are as near to the project's loop in float64 (recipes.py) as max(1e-5, 2 x what the same loop in
float32 is), by max|a - b| / max|b|; newton and picard converge by themselves. A setting that is left
out of a page's command must be seen: without any one of its flags the samples are others.
"""

import argparse
import os
import pathlib
import re
import shlex
import sys
import tempfile
import types

for _variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
    os.environ.setdefault(_variable, '1')

import numpy as np  # noqa: E402
import torch  # noqa: E402

import models_test  # noqa: E402
import recipes  # noqa: E402
import serving  # noqa: E402
import stacking  # noqa: E402

PAGES = pathlib.Path(__file__).resolve().parents[2] / 'deploy/models/recipes'
SOLVERS = ('sequential', 'newton', 'picard')


def block(page, language):
    """The one block of a language in a page."""
    found = re.findall(rf'```{language}\n(.*?)```', (PAGES / f'{page}.md').read_text(), re.DOTALL)
    assert len(found) == 1, f'{page}.md has {len(found)} blocks of {language}'
    return found[0]


def offer_safetensors():
    """safetensors, of which the pages take save_file alone, where it is not installed."""
    try:
        import safetensors  # noqa: F401
    except ImportError:
        def save_file(tensors, path):
            stacking.write_safetensors(pathlib.Path(path), tensors)
        for name in ('safetensors', 'safetensors.torch', 'safetensors.numpy'):
            module = types.ModuleType(name)
            module.save_file = save_file
            sys.modules[name] = module


def write(recipe, network, folder):
    """Runs the page's Python with its sizes replaced by those of the test."""
    folder.mkdir(parents=True)
    text = block(recipe.page, 'python')
    for name in recipe.sizes:
        text = re.sub(rf'^[\w, ]*\b{name}\b[\w, ]*= [\d, ]+$', '', text, flags=re.MULTILINE)
    exec(compile(text, f'{recipe.page}.md', 'exec'),  # the page is the program
         {'network': network, 'folder': folder, **recipe.sizes})


def flags_of(recipe):
    """The page's flags as pairs, without its output."""
    words = shlex.split(block(recipe.page, 'sh').replace('\\\n', ' '))
    assert words[:3] == ['deeppcr', 'generate', recipe.name], words
    pairs = list(zip(words[3::2], words[4::2]))
    return [pair for pair in pairs if pair[0] != '--out']


class Judged:
    """A recipe, its noise and conditions, and what its loop makes of them."""

    def __init__(self, recipe, folder):
        self.recipe, self.folder = recipe, folder
        torch.manual_seed(3)
        self.network = recipe.module().eval()
        rows = recipe.rows
        self.start = torch.randn(rows, *recipe.shape)
        self.noise = torch.randn(rows, recipe.steps, *recipe.shape)
        self.given = {name: torch.randn(1 if recipe.one_condition else rows, size)
                      for name, size in recipe.conditions.items()}
        self.exact = self.sample(torch.float64)
        self.own = models_test.error(self.sample(torch.float32), self.exact)

    def sample(self, dtype):
        network, rows = self.network.to(dtype), self.recipe.rows
        given = [row.to(dtype).expand(rows, -1) for row in self.given.values()]
        if self.recipe.page == 'dppo_furniture':
            given = [row[:, None] for row in given]
        with torch.no_grad():
            made = self.recipe.loop(network, self.start.to(dtype),
                                    lambda i: self.noise[:, i].to(dtype), given)
        self.network.float()
        return made.flatten(1).numpy()

    def asked(self, server, solver, flags):
        arguments = ['--num', str(self.recipe.rows), '--initial_noise',
                     server.saved('x', self.start.numpy()), '--step_noise',
                     server.saved('noise', self.noise.numpy()), '--json',
                     server.folder / 'out.json']
        for flag, value in flags:
            if flag == '--num':
                continue
            stem = pathlib.Path(value).stem if value.endswith('.npy') else None
            if stem is not None:
                value = server.saved(stem, self.given[stem].numpy())
            arguments += [f'{flag}={value}']
        return server.ask('generate', self.recipe.name, solver, 1e-4, arguments)

    def wrong(self, server):
        recipe, found = self.recipe, []
        flags = flags_of(recipe)
        allowed = max(models_test.LEAST_TOLERANCE, 2 * self.own)
        line = [f'{recipe.name:18} own {self.own:.1e}']
        for solver in SOLVERS:
            answer = self.asked(server, solver, flags)
            error = models_test.error(answer.samples, self.exact)
            line.append(f'{solver} {error:.1e}')
            if not error <= allowed:
                found.append(f'{recipe.name}: {solver}: {error:.1e}, {allowed:.1e} allowed')
            for sample in answer.report['samples']:
                if not sample['converged'] or sample['fallback']:
                    found.append(f'{recipe.name}: {solver} ended as {sample["termination"]}')
        print(*line, flush=True)
        for i, (flag, _) in enumerate(flags):
            # The first are needed; what the others cut off is seldom there.
            if flag in ('--num', '--conditioning', '--null_conditioning', '--noise_clip', '--lower',
                        '--upper'):
                continue
            left = self.asked(server, 'sequential', flags[:i] + flags[i + 1:])
            if not models_test.error(left.samples, self.exact) > allowed:
                found.append(f'{recipe.name}: nothing shows that {flag} does something')
        return found


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument('--server_binary', required=True)
    parser.add_argument('--client_binary', required=True)
    names = [recipe.name for recipe in recipes.RECIPES]
    parser.add_argument('--recipes', nargs='+', choices=names, default=names)
    flags = parser.parse_args(arguments)
    torch.set_num_threads(1)
    offer_safetensors()
    pages = {path.stem for path in PAGES.glob('*.md')} - {'README'}
    wrong = [] if pages == {recipe.page for recipe in recipes.RECIPES} else [f'pages: {pages}']
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        judged = [Judged(recipe, folder) for recipe in recipes.RECIPES
                  if recipe.name in flags.recipes]
        for each in judged:
            write(each.recipe, each.network, folder / 'models' / each.recipe.name / '1')
            refusal = models_test.check(flags.server_binary,
                                        folder / 'models' / each.recipe.name / '1')
            wrong += [f'{each.recipe.name}: {refusal}'] if refusal else []
        with serving.Server(flags.server_binary, flags.client_binary, folder / 'models', folder,
                            ['--allow_failed=true']) as server:
            for each in judged:
                try:
                    wrong += each.wrong(server)
                except RuntimeError as failed:
                    wrong.append(f'{each.recipe.name}: {failed}')
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
