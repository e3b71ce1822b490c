#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Validates what no test machine can run: the Dockerfile, compose, Prometheus and Grafana files."""

import fnmatch
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / 'deploy'
COMPOSE = yaml.safe_load((DEPLOY / 'compose.yaml').read_text())
DASHBOARDS = sorted((DEPLOY / 'grafana/dashboards').glob('*.json'))
PROMTOOL = shutil.which('promtool')
AMTOOL = shutil.which('amtool')


def seconds(text):
    """'45s' or '1m30s' as a number."""
    parts = re.fullmatch(r'(?:(\d+)m)?(?:(\d+)s)?', text)
    return 60 * int(parts.group(1) or 0) + int(parts.group(2) or 0)


def server_flags():
    """Default by flag name, as the server's own table in server/flags.cc has them."""
    table = (ROOT / 'server/flags.cc').read_text()
    header = (ROOT / 'server/config.h').read_text()
    names = re.findall(r'specs\.push_back\(\s*\w+\(\s*"(\w+)"', table)
    defaults = dict(re.findall(r'^  [\w:]+ (\w+) = ([^;]+);', header, re.MULTILINE))
    return {name: defaults.get(name, '').strip('"') for name in names}


def flags_of(arguments):
    return dict(argument.removeprefix('--').split('=', 1) for argument in arguments)


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


def rule_groups():
    return yaml.safe_load((DEPLOY / 'prometheus/rules.yml').read_text())['groups']


def rules():
    return [rule for group in rule_groups() for rule in group['rules']]


def dashboard_queries(dashboard):
    return [target['expr'] for panel in dashboard['panels'] for target in panel['targets']]


def promtool(*arguments, **options):
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False,
                          **options)


class ComposeTest(unittest.TestCase):

    def test_every_service_is_hardened(self):
        self.assertEqual(set(COMPOSE['services']), {'server', 'prometheus', 'alertmanager', 'grafana'})
        for name, service in COMPOSE['services'].items():
            with self.subTest(name):
                self.assertEqual(service['cap_drop'], ['ALL'])
                self.assertIn('no-new-privileges:true', service['security_opt'])
                self.assertTrue(service['read_only'])
                self.assertNotIn('privileged', service)

    def test_ports_are_published_on_loopback_only(self):
        for name, service in COMPOSE['services'].items():
            for port in service['ports']:
                self.assertTrue(port.startswith('127.0.0.1:'), f'{name}: {port}')

    def test_mounts_exist_and_are_read_only(self):
        for name, service in COMPOSE['services'].items():
            for mount in service['volumes']:
                source, _, mode = (mount + '::').split(':')[:3]
                if source.startswith('.'):
                    self.assertEqual(mode, 'ro', f'{name}: {mount}')
                    self.assertTrue((DEPLOY / source).is_dir(), f'{name}: {mount}')
                else:
                    self.assertIn(source, COMPOSE['volumes'], name)

    def test_images_are_pinned(self):
        for name, service in COMPOSE['services'].items():
            wanted = ':cpu$' if name == 'server' else r':v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}$'
            self.assertRegex(service['image'], wanted, name)

    def test_server_flags_exist_and_the_grace_period_covers_the_drain(self):
        service = COMPOSE['services']['server']
        known = server_flags()
        given = flags_of(service['command'])

        self.assertGreater(len(known), 15)
        self.assertLessEqual(set(given), set(known))
        drain = sum(float(given.get(flag, known[flag]))
                    for flag in ('drain_seconds', 'drain_pause_seconds'))
        self.assertGreater(drain, 0)
        self.assertGreater(seconds(service['stop_grace_period']), drain + 5)

    def test_monitoring_does_not_wait_for_what_it_tells_of(self):
        """A server that a model keeps from being ready is when its metrics are wanted."""
        waits = COMPOSE['services']['prometheus']['depends_on']['server']['condition']
        self.assertEqual(waits, 'service_started')

    def test_build_context_is_the_repository(self):
        build = COMPOSE['services']['server']['build']
        self.assertTrue((DEPLOY / build['context'] / 'Dockerfile').is_file())


class GpuComposeTest(unittest.TestCase):
    def test_overrides_the_server_alone_and_asks_for_the_gpu_backend(self):
        override = yaml.safe_load((DEPLOY / 'compose.gpu.yaml').read_text())['services']
        self.assertEqual(set(override), {'server'})
        server = override['server']
        self.assertEqual(server['environment'], {'DEEPPCR_BACKEND': 'cuda'})
        device = server['deploy']['resources']['reservations']['devices'][0]
        self.assertEqual((device['driver'], device['capabilities']), ('nvidia', ['gpu']))
        arguments = set(re.findall(r'^ARG (\w+)', (ROOT / 'Dockerfile').read_text(), re.MULTILINE))
        self.assertLessEqual(set(server['build']['args']), arguments)


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        self.objects = {}
        for path in (DEPLOY / 'kubernetes').glob('*.yaml'):
            for each in yaml.safe_load_all(path.read_text()):
                self.objects[each['kind']] = each
        self.pod = self.objects['Deployment']['spec']['template']['spec']
        self.server = self.pod['containers'][0]

    def containers(self):
        return [self.server, self.objects['ServingRuntime']['spec']['containers'][0]]

    def test_flags_exist_and_ports_are_those_listened_on(self):
        for container in self.containers():
            flags = flags_of(container['args'])
            self.assertLessEqual(set(flags), set(server_flags()))
            listened = {int(flags[name].rpartition(':')[2]) for name in ('listen', 'http_listen')}
            ports = {port['containerPort'] for port in container['ports']}
            self.assertLessEqual(ports, listened)
        named = {port['name'] for port in self.server['ports']}
        for port in self.objects['Service']['spec']['ports']:
            self.assertIn(port['targetPort'], named)

    def test_probes_are_what_the_server_answers(self):
        source = (ROOT / 'server/observe/http.cc').read_text()
        for container in self.containers():
            port = int(flags_of(container['args'])['listen'].rpartition(':')[2])
            self.assertEqual(container['readinessProbe']['grpc'], {'port': port})
            self.assertIn(f'"{container["livenessProbe"]["httpGet"]["path"]}"', source)
            for probe in ('readinessProbe', 'livenessProbe'):
                # Kubernetes' own is one second, which a busy node takes for itself.
                self.assertGreaterEqual(container[probe]['timeoutSeconds'], 2)

    def test_no_more_rights_than_the_image_needs(self):
        for container in self.containers():
            security = container['securityContext']
            self.assertFalse(security['allowPrivilegeEscalation'])
            self.assertEqual(security['capabilities'], {'drop': ['ALL']})
        self.assertTrue(self.server['securityContext']['readOnlyRootFilesystem'])
        self.assertTrue(self.pod['securityContext']['runAsNonRoot'])
        user = re.search(r'^USER (\d+)', (ROOT / 'Dockerfile').read_text(), re.MULTILINE)
        self.assertEqual(self.pod['securityContext']['runAsUser'], int(user.group(1)))

    def test_the_grace_period_covers_the_drain(self):
        flags = flags_of(self.server['args'])
        drain = float(flags['drain_pause_seconds']) + float(flags['drain_seconds'])
        self.assertGreater(self.pod['terminationGracePeriodSeconds'], drain + 10)

    def test_policies_are_for_the_pods_and_their_ports(self):
        labels = self.objects['Deployment']['spec']['template']['metadata']['labels']
        replicas = self.objects['Deployment']['spec']['replicas']
        budget = self.objects['PodDisruptionBudget']['spec']
        self.assertEqual(budget['selector']['matchLabels'], labels)
        self.assertLess(budget['minAvailable'], replicas)
        policy = self.objects['NetworkPolicy']['spec']
        self.assertEqual(policy['podSelector']['matchLabels'], labels)
        allowed = {port['port'] for rule in policy['ingress'] for port in rule['ports']}
        self.assertEqual(allowed, {port['containerPort'] for port in self.server['ports']})
        metrics = int(flags_of(self.server['args'])['http_listen'].rpartition(':')[2])
        for rule in policy['ingress']:
            if {'port': metrics} in rule['ports']:
                self.assertIn('from', rule)
        for spread in self.pod['topologySpreadConstraints']:
            self.assertEqual(spread['labelSelector']['matchLabels'], labels)
        self.assertFalse(self.pod['enableServiceLinks'])

    def test_every_container_says_what_it_needs(self):
        for container in self.containers():
            self.assertLessEqual({'cpu', 'memory'}, set(container['resources']['requests']))
            self.assertIn('memory', container['resources']['limits'])

    def test_kserve_takes_the_manifest(self):
        """Knative's webhook, KServe's default, refuses the fields that a drain needs."""
        service = self.objects['InferenceService']
        self.assertEqual(service['metadata']['annotations'],
                         {'serving.kserve.io/deploymentMode': 'Standard'})
        runtime = self.objects['ServingRuntime']['spec']
        flags = flags_of(runtime['containers'][0]['args'])
        # The model bears the name of its service, and its metrics are found.
        self.assertEqual(flags['model_name'], '{{.Name}}')
        self.assertEqual(runtime['annotations']['prometheus.kserve.io/port'],
                         flags['http_listen'].rpartition(':')[2])
        pause, drain = (float(flags.get(name, server_flags()[name]))
                        for name in ('drain_pause_seconds', 'drain_seconds'))
        self.assertGreater(service['spec']['predictor']['terminationGracePeriodSeconds'],
                           pause + drain + 5)

    def test_every_mount_has_its_volume(self):
        volumes = {volume['name'] for volume in self.pod['volumes']}
        self.assertEqual({mount['name'] for mount in self.server['volumeMounts']}, volumes)

    def test_the_autoscaler_follows_a_rule_that_exists(self):
        scaler = self.objects['HorizontalPodAutoscaler']['spec']
        self.assertEqual(scaler['scaleTargetRef']['name'],
                         self.objects['Deployment']['metadata']['name'])
        text = (DEPLOY / 'kubernetes/autoscaler.yaml').read_text()
        rule = re.search(r"seriesQuery: '([^']+)'", text).group(1)
        self.assertIn(rule, {each.get('record') for each in rules()})
        metric = scaler['metrics'][0]['external']['metric']['name']
        self.assertIn(f'as: {metric}', text)


    def test_the_monitor_finds_the_service(self):
        monitor, service = self.objects['ServiceMonitor']['spec'], self.objects['Service']
        self.assertEqual(monitor['selector']['matchLabels'], service['metadata']['labels'])
        # The rules and the dashboard know the servers as the job deeppcr.
        self.assertEqual(service['metadata']['labels'][monitor['jobLabel']], 'deeppcr')
        self.assertIn(monitor['endpoints'][0]['port'],
                      {port['name'] for port in service['spec']['ports']})


class GpuOverlayTest(unittest.TestCase):
    def setUp(self):
        self.overlay = yaml.safe_load((DEPLOY / 'kubernetes_gpu/kustomization.yaml').read_text())
        self.deployment = next(
            each for each in
            yaml.safe_load_all((DEPLOY / 'kubernetes/deployment.yaml').read_text())
            if each['kind'] == 'Deployment')

    def test_its_patch_fits_the_deployment(self):
        patch = self.overlay['patches'][0]
        self.assertEqual(patch['target'],
                         {'kind': 'Deployment', 'name': self.deployment['metadata']['name']})
        for change in yaml.safe_load(patch['patch']):
            self.assertEqual(change['op'], 'add')
            *way, last = [part.replace('~1', '/') for part in change['path'].split('/')[1:]]
            place = self.deployment
            for part in way:
                place = place[int(part) if isinstance(place, list) else part]
            if last == '-':
                place.append(change['value'])
            else:
                self.assertNotIn(last, place)
                place[last] = change['value']
        server = self.deployment['spec']['template']['spec']['containers'][0]
        self.assertEqual(flags_of(server['args'])['backend'], 'cuda')
        self.assertLessEqual(set(flags_of(server['args'])), set(server_flags()))
        self.assertEqual(server['resources']['limits']['nvidia.com/gpu'], 1)

    def test_it_takes_the_image_of_the_gpu(self):
        image = self.overlay['images'][0]
        gpu = yaml.safe_load((DEPLOY / 'compose.gpu.yaml').read_text())['services']['server']
        self.assertEqual(f'{image["name"]}:{image["newTag"]}', gpu['image'])
        base = DEPLOY / 'kubernetes_gpu' / self.overlay['resources'][0] / 'kustomization.yaml'
        self.assertEqual(yaml.safe_load(base.read_text())['resources'], ['deployment.yaml'])


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


class DockerfileTest(unittest.TestCase):

    def setUp(self):
        text = re.sub(r'\\\n\s*', '', (ROOT / 'Dockerfile').read_text())
        self.lines = [line for line in text.splitlines() if line and not line.startswith('#')]
        starts = [i for i, line in enumerate(self.lines) if line.startswith('FROM ')]
        self.stages = [self.lines[a:b] for a, b in zip(starts, starts[1:] + [len(self.lines)])]
        self.final = self.stages[-1]

    def instruction(self, lines, name):
        found = [line for line in lines if line.startswith(name + ' ')]
        self.assertEqual(len(found), 1, f'{name}: {found}')
        return found[0].removeprefix(name + ' ')

    def test_bases_are_build_arguments(self):
        self.assertEqual(len(self.stages), 2)
        for name in ('BUILD_BASE=debian:12', 'BASE=debian:12-slim'):
            pinned = [line for line in self.lines if line.startswith(f'ARG {name}@')]
            self.assertEqual(len(pinned), 1, name)
            self.assertRegex(pinned[0], '@sha256:[0-9a-f]{64}$')
        self.assertTrue(self.stages[0][0].startswith('FROM ${BUILD_BASE}'))
        self.assertTrue(self.final[0].startswith('FROM ${BASE}'))

    def test_builds_by_the_one_recipe(self):
        runs = [line for line in self.stages[0] if line.startswith('RUN ')]
        self.assertTrue(any(line.startswith('RUN deploy/install.sh build') for line in runs))
        self.assertTrue(any(line.startswith('RUN deploy/build.sh ') for line in runs))
        self.assertFalse([line for line in runs if 'cmake ' in line])

    def test_what_it_starts_is_installed(self):
        binary, = json.loads(self.instruction(self.final, 'ENTRYPOINT'))
        installed = re.findall(r'install\(TARGETS (\S+) RUNTIME\)', ''.join(
            (ROOT / folder / 'CMakeLists.txt').read_text() for folder in ('server', 'client')))
        self.assertIn(pathlib.PurePath(binary).name, installed)

    def test_runs_as_nobody_special(self):
        user = self.instruction(self.final, 'USER')
        self.assertRegex(user, r'^[1-9]\d*:[1-9]\d*$')

    def test_entrypoint_and_command_are_in_exec_form(self):
        entrypoint = json.loads(self.instruction(self.final, 'ENTRYPOINT'))
        command = json.loads(self.instruction(self.final, 'CMD'))
        self.assertEqual(entrypoint, ['/usr/local/bin/deeppcr-server'])
        self.assertLessEqual(set(flags_of(command)), set(server_flags()))

    def test_healthcheck_is_the_binarys_own_probe(self):
        check = self.instruction(self.final, 'HEALTHCHECK')
        binary, probe = json.loads(check[check.index('CMD ') + 4:])
        command = flags_of(json.loads(self.instruction(self.final, 'CMD')))
        self.assertEqual(binary, '/usr/local/bin/deeppcr-server')
        self.assertIn('probe', server_flags())
        # By HTTP, which has no TLS to be configured for.
        port = command['http_listen'].rpartition(':')[2]
        self.assertEqual(probe, f'--probe=http://127.0.0.1:{port}')

    def test_sources_that_are_copied_reach_the_build(self):
        sources = [source for line in self.stages[0] if line.startswith('COPY ')
                   for source in line.split()[1:-1]]
        self.assertGreater(len(sources), 5)
        patterns = [line for line in (ROOT / '.dockerignore').read_text().splitlines()
                    if line and not line.startswith('#')]
        for source in sources:
            self.assertTrue((ROOT / source).exists(), source)
            self.assertFalse(self.is_ignored(source, patterns), source)

    def test_every_subdirectory_of_the_build_is_copied(self):
        copied = ' '.join(line for line in self.stages[0] if line.startswith('COPY ')).split()
        cmake = (ROOT / 'CMakeLists.txt').read_text()
        for folder in re.findall(r'add_subdirectory\((\w+)\)', cmake):
            if folder != 'tests':
                self.assertIn(folder, copied)

    @staticmethod
    def is_ignored(path, patterns):
        """Docker's rule: the last pattern that matches the path or a parent of it decides."""
        ignored = False
        prefixes = [str(p) for p in [pathlib.PurePath(path), *pathlib.PurePath(path).parents]]
        for pattern in patterns:
            negated = pattern.startswith('!')
            if any(fnmatch.fnmatch(prefix, pattern.lstrip('!')) for prefix in prefixes):
                ignored = not negated
        return ignored


if __name__ == '__main__':
    unittest.main()
