#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the manifests for Kubernetes and KServe, which no test machine can run."""

import re
import unittest

import yaml

from deploy_files import DEPLOY, ROOT, flags_of, rules, server_flags


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


if __name__ == '__main__':
    unittest.main()
