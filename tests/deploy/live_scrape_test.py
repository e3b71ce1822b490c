#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's Prometheus scrapes the real server: every query of the rules, the dashboard and the
console page returns data. Then the server ends, and Debian's Alertmanager hears of it.

usage: live_scrape_test.py SERVER CLIENT [--picture FILE]
Exit status 77, a visible skip, without Prometheus; without Alertmanager that part is left out. With --picture and a Chromium, the console page
as a browser shows it.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / 'deploy'
SCRAPE_SECONDS = 1
LONGEST_START = 300
# A rate over a minute needs two scrapes, and paired runs wait until the server is idle.
LOAD_SECONDS = 12
ALERT_SECONDS = 120


def free_port():
    import socket  # pylint: disable=import-outside-toplevel
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=20) as reply:
        return reply.read().decode()


def await_answer(url, process, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f'{url}: its process ended with status {process.returncode}')
        try:
            return fetch(url)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f'{url} does not answer within {seconds} s')


def expressions():
    """(where it stands, PromQL) of all that is to return data; alerts return it when they fire."""
    groups = yaml.safe_load((DEPLOY / 'prometheus/rules.yml').read_text())['groups']
    for rule in (rule for group in groups for rule in group['rules']):
        if 'record' in rule:
            yield f'rule {rule["record"]}', rule['expr']
            yield f'recorded {rule["record"]}', rule['record']
    for path in sorted((DEPLOY / 'grafana/dashboards').glob('*.json')):
        for panel in json.loads(path.read_text())['panels']:
            for target in panel['targets']:
                expression = target['expr'].replace('$__rate_interval', '1m')
                yield f'{path.name}: {panel["title"]}', re.sub(r'\$model\b', '.*', expression)


class Services:
    def __init__(self, folder, arguments):
        self.folder, self.arguments = folder, arguments
        self.processes = []
        self.grpc, self.http, self.prometheus = free_port(), free_port(), free_port()
        self.alertmanager = free_port()

    def start(self, *command):
        log = open(self.folder / f'log-{len(self.processes)}', 'w', encoding='utf-8')
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def start_server(self):
        process = self.start(
            self.arguments.server, '--model_repository', DEPLOY / 'models/repository', '--listen',
            f'127.0.0.1:{self.grpc}', '--http_listen', f'127.0.0.1:{self.http}',
            '--shadow_rate=1')
        # It answers with an error until every model is loaded, which sanitizers make long.
        return await_answer(f'http://127.0.0.1:{self.http}/readyz', process, LONGEST_START)

    def start_alertmanager(self):
        process = self.start(
            'prometheus-alertmanager',
            f'--config.file={DEPLOY / "alertmanager/alertmanager.yml"}',
            f'--storage.path={self.folder / "alerts"}', '--cluster.listen-address=',
            f'--web.listen-address=127.0.0.1:{self.alertmanager}')
        await_answer(f'http://127.0.0.1:{self.alertmanager}/-/ready', process)

    def start_prometheus(self):
        config = yaml.safe_load((DEPLOY / 'prometheus/prometheus.yml').read_text())
        config['global'] = {'scrape_interval': f'{SCRAPE_SECONDS}s',
                            'evaluation_interval': f'{SCRAPE_SECONDS}s'}
        config['rule_files'] = [str(DEPLOY / 'prometheus/rules.yml')]
        config['alerting']['alertmanagers'][0]['static_configs'] = [
            {'targets': [f'127.0.0.1:{self.alertmanager}']}]
        config['scrape_configs'][0]['static_configs'] = [{'targets': [f'127.0.0.1:{self.http}']}]
        path = self.folder / 'prometheus.yml'
        path.write_text(yaml.safe_dump(config))
        process = self.start(
            'prometheus', f'--config.file={path}', f'--storage.tsdb.path={self.folder / "data"}',
            f'--web.listen-address=127.0.0.1:{self.prometheus}',
            f'--web.console.templates={DEPLOY / "prometheus/consoles"}',
            f'--web.console.libraries={self.folder}')
        await_answer(self.url('/-/ready'), process)

    def url(self, path):
        return f'http://127.0.0.1:{self.prometheus}{path}'

    def query(self, expression):
        reply = json.loads(fetch(self.url('/api/v1/query?') +
                                 urllib.parse.urlencode({'query': expression})))
        return reply['data']['result']

    def client(self, *flags, check=True):
        subprocess.run([self.arguments.client, *flags, '--server', f'127.0.0.1:{self.grpc}'],
                       check=check, capture_output=True, timeout=60)

    def load(self, pause):
        """Requests of all kinds for a while, with pauses in which pairs are measured."""
        digits = str(DEPLOY / 'models/data/digits_heldout.npy')
        end = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < end:
            for solver in ('sequential', 'newton'):
                self.client('forward', 'digits-resnet', '--in', digits, '--solver', solver)
                self.client('generate', 'swissroll-ddpm', '--num', '2', '--solver', solver)
            # The first request falls back, the second one is refused.
            self.client('forward', 'digits-mlp', '--in', digits, '--solver', 'newton',
                        '--max_iterations', '1', '--rtol', '1e-7')
            self.client('forward', 'digits-resnet', '--in', digits, '--rtol', '5', check=False)
            time.sleep(pause)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(timeout=30)


def without_data(services):
    missing = []
    for where, expression in expressions():
        values = [float(result['value'][1]) for result in services.query(expression)]
        if not any(value == value for value in values):  # all values are NaN, or there are none
            missing.append(f'{where}: {expression}')
    return missing


def check_console(services):
    page = fetch(services.url('/consoles/deeppcr.html'))
    problems = [line.strip() for line in page.splitlines() if 'no data' in line]
    for wanted in ('Is the parallel solver paying off', 'digits-resnet', 'swissroll-ddpm',
                   'newton', 'solve', 'INVALID_ARGUMENT'):
        if wanted not in page:
            problems.append(f'{wanted!r} is not on the page')
    return problems


def missing_after_load(services):
    """Pairs are measured only while nothing else is: a busy machine takes longer to get there."""
    for pause in (0.3, 1, 3, 9):
        services.load(pause)
        # Waits for the last counters, and for rules over them.
        time.sleep(3 * SCRAPE_SECONDS)
        missing = without_data(services)
        missing += [f'console: {problem}' for problem in check_console(services)]
        if not missing:
            break
    return missing


def problems_after_the_end(services):
    """The server ends; whoever is on call is to know within the alert's half a minute and a bit."""
    services.processes[0].terminate()
    url = f'http://127.0.0.1:{services.alertmanager}/api/v2/alerts'
    end = time.monotonic() + ALERT_SECONDS
    names = set()
    while time.monotonic() < end:
        names = {alert['labels']['alertname'] for alert in json.loads(fetch(url))}
        if 'DeepPcrDown' in names:
            return []
        time.sleep(1)
    return [f'Alertmanager has not heard of DeepPcrDown in {ALERT_SECONDS} s, only of {names}']


def take_picture(services, path):
    browser = shutil.which('chromium')
    if browser is None:
        print('no Chromium: no picture')
        return
    subprocess.run([browser, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
                    '--window-size=1200,1500', f'--screenshot={path}',
                    services.url('/consoles/deeppcr.html')], check=True, capture_output=True,
                   timeout=120)
    print(f'picture: {path}, {pathlib.Path(path).stat().st_size} bytes')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('server')
    parser.add_argument('client')
    parser.add_argument('--picture')
    arguments = parser.parse_args()
    if shutil.which('prometheus') is None:
        print('skipped: no prometheus is installed')
        return 77
    has_alertmanager = shutil.which('prometheus-alertmanager') is not None
    if not has_alertmanager:
        print('left out: no prometheus-alertmanager is installed')
    with tempfile.TemporaryDirectory() as folder:
        services = Services(pathlib.Path(folder), arguments)
        try:
            services.start_server()
            if has_alertmanager:
                services.start_alertmanager()
            services.start_prometheus()
            missing = missing_after_load(services)
            if arguments.picture:
                take_picture(services, arguments.picture)
            problems = problems_after_the_end(services) if has_alertmanager else []
        finally:
            services.stop()
    for line in missing:
        print(f'no data: {line}')
    print(f'{len(list(expressions()))} queries, {len(missing)} without data')
    for line in problems:
        print(line)
    return 1 if missing or problems else 0


if __name__ == '__main__':
    sys.exit(main())
