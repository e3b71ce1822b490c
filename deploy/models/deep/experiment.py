# SPDX-License-Identifier: Apache-2.0
"""What the runs of train_deep.sh share: the options, the order of the samples, and their files."""

import json
import math
import pathlib

import numpy as np

SEED, BATCH = 1, 64
STEPS_PER_EPOCH = 22  # of 1347 samples
FULL_STEPS = 30 * STEPS_PER_EPOCH
RATE, WARMUP, CLIP, DECAY = 3e-3, 200, 1.0, 0.1
# The input layer writes the first 8 of 16 elements of the state, the output layer reads the others.
SPLIT = 8


def flags(steps):
    """The same to `deeppcr train`."""
    return ['--batch_size', str(BATCH), '--steps', str(steps),
            '--optimizer', 'adamw', '--learning_rate', str(RATE), '--warmup_steps',
            str(min(WARMUP, steps)), '--clip_norm', str(CLIP), '--weight_decay', str(DECAY),
            '--split_state', str(SPLIT)]


def rate_of(step, steps):
    """Of step 0, 1, ...: a line up, then half a cosine (kernels/training/schedule.h)."""
    warmup = min(WARMUP, steps)
    if step < warmup:
        return RATE * (step + 1) / warmup
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def philox(counter, key):
    """Philox 4x32-10 (kernels/problem/philox.h)."""
    low = 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (b >> 32 ^ counter[1] ^ key[0], b & low, a >> 32 ^ counter[3] ^ key[1], a & low)
        key = (key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low)
    return counter


def order_of(epoch, count):
    """The order in which `deeppcr train` takes the samples (kernels/training/dataset.cc)."""
    order, of_orders = np.arange(count), 2  # NoiseStream::kOrder
    for i in range(count - 1, 0, -1):
        words = philox((i, of_orders, epoch, 0), (SEED, 0))
        place = (words[0] << 32 | words[1]) % (i + 1)
        order[i], order[place] = order[place], order[i]
    return order


def batches(count, steps):
    """Indices of the samples of every step."""
    assert (count - 1) // BATCH + 1 == STEPS_PER_EPOCH
    for step in range(steps):
        epoch, within = divmod(step, STEPS_PER_EPOCH)
        if within == 0:
            order = order_of(epoch, count)
        yield order[within * BATCH:(within + 1) * BATCH]


def read_log(path):
    """Losses and seconds of every step, held-out accuracy by step, bypassed accuracy."""
    run = {'losses': {}, 'seconds': [], 'iterations': 0, 'fallbacks': 0, 'held_out': {},
           'bypassed': None}
    for line in pathlib.Path(path).read_text(encoding='utf-8').splitlines():
        entry = json.loads(line)
        if 'loss' in entry:
            run['losses'][entry['step']] = entry['loss']
            run['seconds'].append(sum(entry['seconds'].values()))
            run['iterations'] = max(run['iterations'], entry.get('iterations', 0))
            run['fallbacks'] += entry.get('fallbacks', 0)
        elif 'validation_accuracy' in entry:
            run['held_out'][entry['step']] = entry['validation_accuracy']
        else:
            run['bypassed'] = entry['bypassed_accuracy']
    return run
