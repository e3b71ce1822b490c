#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the files of Prometheus, Alertmanager and Grafana against the metrics of the server."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

from deploy_files import COMPOSE, DEPLOY, ROOT, flags_of, rule_groups, rules

DASHBOARDS = sorted((DEPLOY / 'grafana/dashboards').glob('*.json'))
PROMTOOL = shutil.which('promtool')
AMTOOL = shutil.which('amtool')


def server_metrics():
    """Type by metric name, as server/observe/metrics.cc registers them."""
    text = (ROOT / 'server/observe/metrics.cc').read_text()
    found = {
        f'deeppcr_{name}': kind.lower()
        for kind, name in re.findall(r'Register\(Build(\w+)\(\), registry_,\s*"(\w+)"', text)
    }
    found.update((name, 'gauge') for name in re.findall(r'GaugeFamily\("(\w+)"', text))
    return found


def series_names():
    names = set()
    for name, kind in server_metrics().items():
        suffixes = ('_bucket', '_sum', '_count') if kind == 'histogram' else ('',)
        names.update(name + suffix for suffix in suffixes)
    return names


def dashboard_queries(dashboard):
    return [target['expr'] for panel in dashboard['panels'] for target in panel['targets']]


def promtool(*arguments, **options):
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False,
                          **options)


class PrometheusTest(unittest.TestCase):

    def setUp(self):
        self.config = yaml.safe_load((DEPLOY / 'prometheus/prometheus.yml').read_text())

    def test_scrapes_the_metrics_port_of_the_server(self):
        flags = flags_of(COMPOSE['services']['server']['command'])
        port = flags['http_listen'].rpartition(':')[2]
        targets = [target for job in self.config['scrape_configs']
                   for entry in job['static_configs'] for target in entry['targets']]
        self.assertEqual(targets, [f'server:{port}'])

    def test_every_alert_is_described_and_tested(self):
        described = re.findall(r'^\| `(DeepPcr\w+)` \|', (DEPLOY / 'README.md').read_text(), re.M)
        tested = (ROOT / 'tests/deploy/rules_test.yml').read_text()
        names = [rule['alert'] for rule in rules() if 'alert' in rule]
        self.assertEqual(sorted(described), sorted(names))
        for name in names:
            cases = re.findall(rf'alertname: {name}\n\s*eval_time: \w+\n\s*exp_alerts:( \[\])?',
                               tested)
            self.assertEqual(cases, [' []', '', ' []'], f'{name}: quiet, firing and quiet again')

    def test_rule_files_exist(self):
        self.assertTrue(self.config['rule_files'])
        for name in self.config['rule_files']:
            self.assertTrue((DEPLOY / 'prometheus' / name).is_file(), name)

    @unittest.skipUnless(PROMTOOL, 'promtool is not installed')
    def test_promtool_accepts_config_and_rules(self):
        result = promtool('check', 'config', str(DEPLOY / 'prometheus/prometheus.yml'))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    @unittest.skipUnless(PROMTOOL, 'promtool is not installed')
    def test_rules_compute_what_they_say(self):
        result = promtool('test', 'rules', 'rules_test.yml', cwd=ROOT / 'tests/deploy')
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class AlertmanagerTest(unittest.TestCase):

    def setUp(self):
        self.config = yaml.safe_load((DEPLOY / 'alertmanager/alertmanager.yml').read_text())

    def test_prometheus_sends_alerts_to_it(self):
        config = yaml.safe_load((DEPLOY / 'prometheus/prometheus.yml').read_text())
        targets = [target for manager in config['alerting']['alertmanagers']
                   for entry in manager['static_configs'] for target in entry['targets']]
        (published,) = COMPOSE['services']['alertmanager']['ports']
        self.assertEqual(targets, ['alertmanager:' + published.rpartition(':')[2]])

    def test_its_file_is_the_one_that_is_mounted(self):
        service = COMPOSE['services']['alertmanager']
        path = flags_of(service['command'])['config.file']
        self.assertIn(f'./alertmanager:{pathlib.Path(path).parent}:ro', service['volumes'])
        self.assertTrue((DEPLOY / 'alertmanager' / pathlib.Path(path).name).is_file())

    def test_alerts_that_it_names_exist(self):
        alerts = [rule for rule in rules() if 'alert' in rule]
        names = {alert['alert'] for alert in alerts}
        severities = {alert['labels']['severity'] for alert in alerts}
        text = (DEPLOY / 'alertmanager/alertmanager.yml').read_text()
        named = re.findall(r'alertname !?= (\w+)', text)
        self.assertEqual(set(named), {'DeepPcrDown'})
        self.assertLessEqual(set(named), names)
        self.assertEqual(set(re.findall(r'severity = (\w+)', text)) - severities, set())
        self.assertIn('severity = page', text)

    @unittest.skipUnless(AMTOOL, 'amtool is not installed')
    def test_amtool_accepts_it(self):
        path = DEPLOY / 'alertmanager/alertmanager.yml'
        result = subprocess.run([AMTOOL, 'check-config', str(path)], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class QueryTest(unittest.TestCase):
    """Names and labels of every PromQL expression are the server's."""

    def expressions(self):
        for rule in rules():
            yield f'rule {rule.get("record", rule.get("alert"))}', rule['expr']
        for path in DASHBOARDS:
            for query in dashboard_queries(json.loads(path.read_text())):
                yield path.name, query

    def test_metrics_exist(self):
        known = series_names() | {rule['record'] for rule in rules() if 'record' in rule}
        self.assertGreater(len(known), 20)
        seen = set()
        for origin, expression in self.expressions():
            bare = re.sub(r'\{[^}]*\}', '', expression)
            names = re.findall(r'\b(?:deeppcr|process_)[\w:]*', bare)
            self.assertTrue(names or 'up' in bare, f'{origin}: {expression}')
            for name in names:
                self.assertIn(name, known, f'{origin}: {expression}')
            seen.update(names)
        self.assertGreater(len(seen), 10)

    def test_labels_exist(self):
        source = (ROOT / 'server/observe/metrics.cc').read_text()
        known = {'le', 'job', 'instance'}
        known.update(re.findall(r'\{"(\w+)",', source))
        known.update(re.findall(r'labels\["(\w+)"\]', source))
        for origin, expression in self.expressions():
            used = set(re.findall(r'(\w+)\s*=~?\s*"', expression))
            for group in re.findall(r'\bby \(([^)]*)\)', expression):
                used |= {label.strip() for label in group.split(',')}
            self.assertLessEqual(used, known, f'{origin}: {expression}')

    @unittest.skipUnless(PROMTOOL, 'promtool is not installed')
    def test_dashboard_queries_parse(self):
        queries = [query.replace('$__rate_interval', '1m').replace('$model', '.*')
                   for path in DASHBOARDS
                   for query in dashboard_queries(json.loads(path.read_text()))]
        group = {'name': 'dashboard', 'rules': [
            {'record': f'query:{index}', 'expr': query} for index, query in enumerate(queries)]}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / 'queries.yml'
            path.write_text(yaml.safe_dump({'groups': [group]}))
            result = promtool('check', 'rules', str(path))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(f'{len(queries)} rules found', result.stdout)


class GrafanaTest(unittest.TestCase):

    def setUp(self):
        self.provisioning = DEPLOY / 'grafana/provisioning'
        self.mounts = dict(mount.split(':')[:2]
                           for mount in COMPOSE['services']['grafana']['volumes'])

    def test_datasource_is_pinned_and_reaches_prometheus(self):
        source, = yaml.safe_load(
            (self.provisioning / 'datasources/prometheus.yaml').read_text())['datasources']
        self.assertEqual(source['type'], 'prometheus')
        self.assertEqual(source['url'], 'http://prometheus:9090')
        for path in DASHBOARDS:
            dashboard = json.loads(path.read_text())
            holders = dashboard['panels'] + dashboard['templating']['list']
            holders += [target for panel in dashboard['panels'] for target in panel['targets']]
            self.assertEqual({holder['datasource']['uid'] for holder in holders}, {source['uid']})

    def test_provider_reads_the_mounted_folder(self):
        provider, = yaml.safe_load(
            (self.provisioning / 'dashboards/deeppcr.yaml').read_text())['providers']
        self.assertEqual(self.mounts['./grafana/dashboards'], provider['options']['path'])
        self.assertEqual(self.mounts['./grafana/provisioning'], '/etc/grafana/provisioning')

    def test_dashboard_is_well_formed(self):
        self.assertTrue(DASHBOARDS)
        for path in DASHBOARDS:
            dashboard = json.loads(path.read_text())
            panels = dashboard['panels']
            self.assertEqual(len({panel['id'] for panel in panels}), len(panels))
            cells = [(x, y) for panel in panels for grid in [panel['gridPos']]
                     for x in range(grid['x'], grid['x'] + grid['w'])
                     for y in range(grid['y'], grid['y'] + grid['h'])]
            self.assertEqual(len(set(cells)), len(cells), 'panels overlap')
            self.assertLessEqual(max(x for x, _ in cells), 23)

    def test_dashboard_shows_what_the_service_promises(self):
        queries = ' '.join(query for path in DASHBOARDS
                           for query in dashboard_queries(json.loads(path.read_text())))
        for wanted in ('deeppcr_pairs_total', 'deeppcr_last_pair_timestamp_seconds',
                       'deeppcr_shadow_error_over_tolerance', 'histogram_quantile(0.5,', 'histogram_quantile(0.95,',
                       'histogram_quantile(0.99,', 'by (le, model, solver)', 'deeppcr_speedup_ratio',
                       'deeppcr_shadow_relative_error', 'deeppcr_iterations', 'by (model, reason)',
                       'deeppcr_queue_depth', 'by (model, code)'):
            self.assertIn(wanted, queries)

    def test_no_panel_mixes_models(self):
        for path in DASHBOARDS:
            for query in dashboard_queries(json.loads(path.read_text())):
                groups = re.findall(r'\bby \(([^)]*)\)', query)
                if 'model=~' in query:
                    self.assertTrue(groups and all('model' in group for group in groups), query)

    def test_the_first_row_answers_the_question_for_every_model(self):
        for path in DASHBOARDS:
            table = min(json.loads(path.read_text())['panels'], key=lambda panel: panel['gridPos']['y'])
            self.assertEqual(table['type'], 'table')
            organize = table['transformations'][-1]['options']
            # Every column comes from a query, and every query has its column.
            values = {f'Value #{target["refId"]}' for target in table['targets']}
            self.assertEqual({name for name in organize['renameByName'] if name.startswith('Value')},
                             values)
            labels = set(organize['renameByName']) - values
            grouped = re.search(r'by \(([^)]*)\)', table['targets'][0]['expr']).group(1)
            self.assertEqual(labels, set(re.split(r',\s*', grouped)))


if __name__ == '__main__':
    unittest.main()
