# SPDX-License-Identifier: Apache-2.0
"""What `deeppcr-server --check DIR --verbose` says of a program's arithmetic."""

import dataclasses
import re
import subprocess

WORK = re.compile(r'^(as written|optimised): multiply-adds (\d+) on time, (\d+) on condition, '
                  r'(\d+) on time and condition, (\d+) on state; ([\d.]+) % in the step$', re.M)
LEFT = re.compile(r'^left in the step: ([\d.]+) % of the arithmetic as written$', re.M)
LAYER = re.compile(r'^\S+ = linear\(\S+\) (\d+) x (\d+)(?:, \d+ times)?(, no bias)?  \[\d+\]  '
                   r'state ', re.M)


@dataclasses.dataclass
class Program:
    written: list    # multiply-adds on time, condition, both, state
    optimised: list
    written_share: float  # of the arithmetic, in percent, that is in the step
    optimised_share: float
    left: float  # in the step, in percent of all that was written
    step_numbers: int  # of the layers that multiply with the state


def describe(server_binary, folder):
    done = subprocess.run([server_binary, '--check', folder, '--verbose'], capture_output=True,
                          text=True, check=True)
    works = {kind: ([int(n) for n in numbers], float(share))
             for kind, *numbers, share in WORK.findall(done.stdout)}
    layers = [int(rows) * (int(cols) + (not no_bias))
              for rows, cols, no_bias in LAYER.findall(done.stdout)]
    return Program(*(works[kind][0] for kind in ('as written', 'optimised')),
                   *(works[kind][1] for kind in ('as written', 'optimised')),
                   float(LEFT.search(done.stdout)[1]), sum(layers))
