# SPDX-License-Identifier: Apache-2.0
"""Runs steps within a budget, so that none of them can take what the others have found.

Every step is a process group of its own, which is killed as a whole at the step's limit. Its output
goes into a log line by line as it comes, lines of JSON into the results, and the results into files
that are replaced at once: after every step, and every half a second while rows arrive.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import threading
import time

FLUSH_SECONDS = 0.5
LOG_BYTES = 1 << 20      # of one step; what comes beyond is not kept
GRACE_SECONDS = 1        # from SIGTERM to SIGKILL
BEGINS = re.compile(r'case |running |\[ RUN      \] ')  # a line that says what runs next
GOOD = ('ok', 'skipped')


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    part: str
    command: tuple
    limit: float          # seconds after which it is killed
    rows: str = ''        # the list of the results that takes its rows; '': a row has keys of its own
    log: str = 'tests.log'
    missing: str = ''     # why it cannot run at all
    fails: bool = True    # where it cannot run, that is a failure
    needs: str = ''       # a step that must have passed
    skips_on: str = ''    # regular expression of the line by which it says that it may not run here
    fails_on: str = ''    # the same of one by which it says that it did nothing
    least: float = 5      # seconds below which it is not worth starting
    tests: bool = False   # of GoogleTest: goes on behind a test that crashed or hung
    optional: bool = False  # may be left out for want of time


def say(text):
    """Whoever reads along may have gone; the run goes on."""
    try:
        print(text, flush=True)
    except OSError:
        pass


def replace_file(path, text):
    """Readers see the old file or the new one, and so does whoever comes after a crash."""
    scratch = path.with_name('.' + path.name + '.new')
    scratch.write_text(text, encoding='utf-8')
    os.replace(scratch, path)


class Outcome:
    """What a step has printed so far, and what is to be said of it."""

    def __init__(self, step):
        self.step = step
        self.last_begun = self.last_line = self.forbidden = self.wrong = ''
        self.begun = []   # tests of GoogleTest
        self.kept = 0

    def take(self, line):
        if BEGINS.match(line):
            self.last_begun = line
            if line.startswith('[ RUN'):
                self.begun.append(line.split()[-1])
        elif line.strip():
            self.last_line = line.strip()
        if self.step.skips_on and not self.forbidden and re.search(self.step.skips_on, line):
            self.forbidden = line.strip()
        if self.step.fails_on and re.search(self.step.fails_on, line):
            self.wrong = line.strip()

    def where(self):
        """What it was at when it ended."""
        begun, last = self.last_begun.strip(), self.last_line
        return '; '.join(part for part in (f'in: {begun}' if begun else '',
                                           f'last line: {last}' if last else '') if part)


class Runner:
    """`stages` come one after another; the lanes of a stage, lists of steps, side by side. `budgets`:
    seconds that are kept for a stage while those before it run. `write(results)` puts the results
    into files."""

    def __init__(self, out, results, stages, budgets, whole, write, environment=None):
        self.out, self.results, self.stages, self.write = out, results, stages, write
        self.environment = environment
        self.started = time.monotonic()
        self.ends = self.started + whole
        self.budgets = [budget if any(not step.missing for lane in lanes for step in lane) else 0
                        for budget, lanes in zip(budgets, stages)]
        self.lock = threading.RLock()  # guards the results, the logs and what is written when
        self.dirty, self.written = False, 0
        self.stopped = ''  # name of the signal

    def stop(self, number, _frame=None):
        self.stopped = signal.Signals(number).name

    def run(self):
        for number, lanes in enumerate(self.stages):
            left_after = sum(self.budgets[number + 1:])
            threads = [threading.Thread(target=self._run_lane, args=(lane, left_after), daemon=True)
                       for lane in lanes]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.05)
                self._flush(FLUSH_SECONDS)
        self._flush(0)

    # ---- Results
    def record(self, name):
        return next((r for r in self.results['steps'] if r['name'] == name), None)

    def _set(self, name, **fields):
        with self.lock:
            found = self.record(name)
            if found is None:
                found = {'name': name}
                self.results['steps'].append(found)
            found.update(fields)
            self.dirty = True

    def _flush(self, after):
        with self.lock:
            now = time.monotonic()
            if self.dirty and now - self.written >= after:
                self.dirty = False
                self.written = now
                try:
                    self.write(self.results)
                except OSError as error:  # a full disk, say: the next time may do
                    say(f'the results are not written: {error}')

    def _take_row(self, step, line):
        """True if the line was a row."""
        try:
            row = json.loads(line)
        except ValueError:
            return False
        if not isinstance(row, dict):
            return False
        with self.lock:
            if step.rows:
                self.results.setdefault(step.rows, []).append({**row, 'step': step.name})
            else:
                self.results.update(row)
            self.dirty = True
        return True

    # ---- Steps
    def _run_lane(self, lane, left_after):
        for step in lane:
            try:
                self._run_step(step, left_after)
            except Exception as error:  # pylint: disable=broad-except  # the others are to run
                self._end(step.name, step, 'failed', 0, f'{type(error).__name__}: {error}')

    def _end(self, name, step, status, seconds, why):
        self._set(name, part=step.part, status=status, seconds=round(seconds, 1), why=why[:400])
        say(f'-- {status}: {name}{": " if why else ""}{why}')
        self._flush(0)

    def _run_step(self, step, left_after):
        needed = self.record(step.needs) if step.needs else None
        if self.stopped:
            return self._end(step.name, step, 'not started', 0, f'ended by {self.stopped}')
        if step.missing:
            return self._end(step.name, step, 'missing' if step.fails else 'skipped', 0, step.missing)
        if step.needs and (needed is None or needed['status'] != 'ok'):
            return self._end(step.name, step, 'skipped' if needed and needed['status'] in GOOD else
                             'not started', 0, f'needs "{step.needs}"')
        command, name = step.command, step.name
        for _ in range(3):
            left = self.ends - left_after - time.monotonic()
            if left < min(step.least, step.limit):
                if step.optional:
                    return self._end(name, step, 'skipped', 0, 'no time is left for it')
                return self._end(name, step, 'not started', 0,
                                 f'{max(left, 0):.0f} s are left for it; --only {step.part} runs it alone')
            outcome, status = self._execute(name, step, command, min(step.limit, left))
            if not (step.tests and outcome.begun and status in ('timed out', 'crashed')):
                return None
            # What has begun is not begun again; the last of them is what hung or crashed.
            command = (*step.command, '--gtest_filter=-' + ':'.join(outcome.begun))
            name = f'{step.name}, behind {outcome.begun[-1]}'
        return None

    def _execute(self, name, step, command, limit):
        """(Outcome, status)."""
        say(f'\n== {name}')
        self._set(name, part=step.part, status='running', at=round(time.monotonic() - self.started, 1),
                  seconds=0, why='')
        self._flush(0)
        began = time.monotonic()
        outcome = Outcome(step)
        with open(self.out / step.log, 'ab') as log:
            log.write(f'\n== {name}: {" ".join(map(str, command))}\n'.encode())
            log.flush()
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       start_new_session=True, env=self.environment)
            reader = threading.Thread(target=self._read, args=(process.stdout, outcome, log), daemon=True)
            reader.start()
            ended = self._await(process, began + limit)
            kill_group(process)  # also what it has left running
            reader.join(timeout=GRACE_SECONDS)
            with self.lock:
                outcome.step = None  # a reader that is still there keeps no more
        seconds = time.monotonic() - began
        status, why = self._verdict(step, process, outcome, ended, limit)
        self._end(name, step, status, seconds, why)
        return outcome, status

    def _await(self, process, until):
        """'' if the process has ended by itself, else why it has not."""
        while process.poll() is None:
            if self.stopped:
                return self.stopped
            if time.monotonic() >= until:
                return 'limit'
            time.sleep(0.02)
        return ''

    def _read(self, pipe, outcome, log):
        for raw in pipe:
            line = raw.decode(errors='replace')
            with self.lock:
                step = outcome.step
                if step is None:
                    return
                is_row = line.startswith('{') and self._take_row(step, line)
                if not is_row:
                    outcome.take(line)
                if is_row and not step.rows:
                    continue  # one that replaces what came before
                outcome.kept += len(raw)
                if outcome.kept <= LOG_BYTES:
                    log.write(raw)
                    log.flush()

    def _verdict(self, step, process, outcome, ended, limit):
        if outcome.forbidden:
            return 'skipped', f'not permitted here: {outcome.forbidden}'
        alive = '' if process.poll() is not None else '; does not die of SIGKILL'
        if ended == 'limit':
            return 'timed out', f'not done after {limit:.0f} s; {outcome.where()}{alive}'
        if ended:
            return 'interrupted', f'ended by {ended}; {outcome.where()}{alive}'
        code = process.returncode
        if code == 0:
            return ('failed', outcome.wrong) if outcome.wrong else ('ok', outcome.last_line)
        if code == 77:
            return ('missing' if step.fails else 'skipped'), outcome.last_line
        # A shell in between reports a signal as 128 and its number.
        number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
        if number:
            return 'crashed', f'{signal.Signals(number).name}; {outcome.where()}'
        return 'failed', f'status {code}; {outcome.where()}'


def kill_group(process):
    """Ends what is left of the process's group; returns also if something does not die."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until and group_lives(process):
            time.sleep(0.02)
    process.poll()


def group_lives(process):
    process.poll()  # a zombie would keep the group
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def summary_lines(results):
    return [f'{r["status"]:<12} {r["name"]:<34} {r["seconds"]:6.1f} s  {r["why"]}'.rstrip()
            for r in results['steps']]


def failures(results):
    return [r for r in results['steps'] if r['status'] not in GOOD]
