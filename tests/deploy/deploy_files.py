# SPDX-License-Identifier: Apache-2.0
"""What the tests of several files in deploy know of them, and of the server that these are for."""

import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / 'deploy'
COMPOSE = yaml.safe_load((DEPLOY / 'compose.yaml').read_text())


def server_flags():
    """Default by flag name, as the server's own table in server/flags.cc has them."""
    table = (ROOT / 'server/flags.cc').read_text()
    header = (ROOT / 'server/config.h').read_text()
    names = re.findall(r'specs\.push_back\(\s*\w+\(\s*"(\w+)"', table)
    defaults = dict(re.findall(r'^  [\w:]+ (\w+) = ([^;]+);', header, re.MULTILINE))
    return {name: defaults.get(name, '').strip('"') for name in names}


def flags_of(arguments):
    return dict(argument.removeprefix('--').split('=', 1) for argument in arguments)


def rule_groups():
    return yaml.safe_load((DEPLOY / 'prometheus/rules.yml').read_text())['groups']


def rules():
    return [rule for group in rule_groups() for rule in group['rules']]
