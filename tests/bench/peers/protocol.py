# SPDX-License-Identifier: Apache-2.0
"""How a candidate is checked and timed, in a process of its own: lines of JSON on its output.

  {"stage": "trying", "setting": ..., "before": N, "right": N}
                                        for each setting that is loaded, checked and tried: how
                                        many came before it, and how many of them were right
  {"stage": "measuring", ...}           the best one was found; the limit on loading ends here
  {"stage": "done", "row": {...}}       what the result file gets, without the candidate's name

A candidate's answer is compared with float64 before it is timed, and one that is wrong gets no
time. A turn is a call of the candidate, of the plain C loop and of ours, each after an untimed one
that brings the caches back; a ratio is formed within a turn.
"""

import statistics
import time

import problems
from calls import NotOffered

# Relative to the largest output of a sample; everybody computes in float32.
TOLERANCE = 1e-4
# A call that takes this long needs no other to bring the caches back.
LONG_SECONDS = 0.1
LEAST_TURNS, MOST_TURNS = 5, 2000
# Turns are ended early where even the least would take this long.
LONGEST_MEASUREMENT = 60
# Timed calls and seconds by which the settings of a candidate are compared.
TRIAL_CALLS, TRIAL_SECONDS = 20, 0.3
STATUSES = ('measured', 'wrong', 'failed', 'not installed', 'not tried', 'no answer')


def short(error):
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f'{type(error).__name__}: {lines[-1].strip()[:200] if lines else ""}'


def trial_seconds(call):
    """The shortest of a few calls."""
    taken, start = [], time.perf_counter()
    while not taken or (len(taken) < TRIAL_CALLS and time.perf_counter() - start < TRIAL_SECONDS):
        taken.append(call.seconds())
    return min(taken)


def tried(setting, expected):
    """(what is to be said of a setting, its call or None)."""
    said = {'setting': setting.name}
    try:
        start = time.perf_counter()
        call = setting.build()
        got = call.answer()
        said['load_s'] = time.perf_counter() - start
        said['error'] = problems.relative_error(got, expected)
        if not said['error'] <= TOLERANCE:
            return said | {'status': 'wrong'}, None
        said['trial_us'] = 1e6 * trial_seconds(call)
        return said | {'status': 'right'}, call
    except NotOffered as reason:
        return said | {'status': 'not tried', 'reason': str(reason)}, None
    except Exception as error:  # whatever a framework throws is a row
        return said | {'status': 'failed', 'reason': short(error)}, None


def best_of(settings, expected, say, until):
    """(all that was said, the fastest that is right, its call); begins no setting after `until`."""
    said, best, call = [], None, None
    for setting in settings:
        if said and time.monotonic() > until:
            said.append({'setting': setting.name, 'status': 'not tried', 'reason': 'no time left'})
            continue
        say({'stage': 'trying', 'setting': setting.name, 'before': len(said),
             'right': sum(s['status'] == 'right' for s in said)})
        now, made = tried(setting, expected)
        said.append(now)
        if made and (best is None or now['trial_us'] < best['trial_us']):
            best, call = now, made
    return said, best, call


def timed(call):
    """Seconds of a call, after an untimed one unless that was long."""
    first = call.seconds()
    return first if first > LONG_SECONDS else call.seconds()


def measured(calls, seconds):
    """Seconds by turn of each of `calls`, by name; the first one is the candidate."""
    taken, start = {name: [] for name in calls}, time.perf_counter()
    for turn in range(MOST_TURNS):
        passed = time.perf_counter() - start
        if (turn >= LEAST_TURNS and passed > seconds) or (turn and passed > LONGEST_MEASUREMENT):
            break
        for name, call in calls.items():
            taken[name].append(timed(call))
    return taken


def ratios(taken, name, to):
    """Of the shortest calls, and the median of those within turns."""
    return {'min': min(taken[name]) / min(taken[to]),
            'paired': statistics.median(a / b for a, b in zip(taken[name], taken[to]))}


def summary(taken, name):
    """The figures of a row, of which NAME is the candidate's; ratios to every other call."""
    figures = {'min_us': 1e6 * min(taken[name]), 'median_us': 1e6 * statistics.median(taken[name]),
               'turns': len(taken[name])}
    for other in taken:
        if other != name:
            figures[f'to_{other}'] = ratios(taken, name, other)
            figures[f'{other}_min_us'] = 1e6 * min(taken[other])
    return figures


def failed_row(said):
    """Of a candidate none of whose settings was right."""
    first = said[0] if said else {'status': 'failed', 'reason': 'no settings'}
    row = {'status': first['status'], 'setting': first.get('setting', ''), 'settings': said}
    wrong = [s for s in said if s['status'] == 'wrong']
    if wrong:
        row |= {'status': 'wrong', 'setting': wrong[0]['setting'], 'error': wrong[0]['error']}
    elif 'reason' in first:
        row['reason'] = first['reason']
    return row


def row_of(settings, expected, others, options, say):
    """The row of a candidate. `others`: the calls that take turns with it, by name."""
    said, best, call = best_of(settings, expected, say,
                               time.monotonic() + options['limit'] / 2)
    if best is None:
        return failed_row(said)
    say({'stage': 'measuring', 'setting': best['setting'], 'load_s': best['load_s']})
    taken = measured({'candidate': call, **others}, options['seconds'])
    row = {'status': 'measured', 'setting': best['setting'], 'load_s': best['load_s'],
           'error': best['error'], **summary(taken, 'candidate')}
    if hasattr(call, 'remark'):
        row['setting'] = call.remark()
    return row | {'settings': said}
