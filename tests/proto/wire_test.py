#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clients of deeppcr.v1 have compiled in stays: fields, their numbers and types, values, RPCs.

usage: wire_test.py [--update]

tests/data/proto/deeppcr_v1.txt has a line for each. A line that is missing from the .proto is a breaking
change; one that is new has to be recorded, which --update does where nothing breaks.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = ROOT / 'tests/data/proto/deeppcr_v1.txt'
PROTO = 'deeppcr/v1/deeppcr.proto'


def parse(lines):
    """Protobuf's text format as [(key, text or list)]."""
    fields = []
    for line in lines:
        line = line.strip()
        if line == '}':
            break
        if line.endswith(' {'):
            fields.append((line[:-2], parse(lines)))
        else:
            key, _, value = line.partition(': ')
            fields.append((key, value.strip('"')))
    return fields


def one(fields, key, default=''):
    return dict(fields).get(key, default)


def each(fields, key):
    return [value for name, value in fields if name == key]


def field_line(scope, field):
    kind = one(field, 'type_name') or one(field, 'type').removeprefix('TYPE_').lower()
    label = {'LABEL_REPEATED': 'repeated '}.get(one(field, 'label'), '')
    if one(field, 'proto3_optional') == 'true':
        label = 'optional '
    return f'{scope}.{one(field, "name")} = {one(field, "number")} {label}{kind}'


def enum_lines(scope, enum):
    name = f'{scope}.{one(enum, "name")}'
    return [f'{name}.{one(v, "name")} = {one(v, "number", "0")}' for v in each(enum, 'value')]


def message_lines(scope, message):
    name = f'{scope}.{one(message, "name")}'
    lines = [name] + [field_line(name, field) for field in each(message, 'field')]
    for nested in each(message, 'nested_type'):
        lines += message_lines(name, nested)
    for enum in each(message, 'enum_type'):
        lines += enum_lines(name, enum)
    return lines


def rpc_line(service, rpc):
    streams = ' stream' if one(rpc, 'server_streaming') == 'true' else ''
    return (f'{service}/{one(rpc, "name")} {one(rpc, "input_type")} ->{streams} '
            f'{one(rpc, "output_type")}')


def wire_lines(folder, proto):
    """A line for everything of the file that a client may have compiled in."""
    with tempfile.NamedTemporaryFile() as descriptors:
        subprocess.run(['protoc', '-I', str(folder), f'--descriptor_set_out={descriptors.name}',
                        proto], check=True)
        text = subprocess.run(['protoc', '-I/usr/include',
                               '--decode=google.protobuf.FileDescriptorSet',
                               'google/protobuf/descriptor.proto'],
                              stdin=descriptors, capture_output=True, text=True, check=True).stdout
    file = one(parse(iter(text.splitlines())), 'file')
    scope, lines = one(file, 'package'), []
    for message in each(file, 'message_type'):
        lines += message_lines(scope, message)
    for enum in each(file, 'enum_type'):
        lines += enum_lines(scope, enum)
    for service in each(file, 'service'):
        lines += [rpc_line(f'{scope}.{one(service, "name")}', rpc)
                  for rpc in each(service, 'method')]
    return lines


class WireTest(unittest.TestCase):

    def test_nothing_that_was_recorded_has_gone(self):
        now = wire_lines(ROOT / 'proto', PROTO)
        recorded = RECORD.read_text(encoding='utf-8').splitlines()
        self.assertGreater(len(recorded), 100)
        self.assertEqual([line for line in recorded if line not in now], [], 'a breaking change')
        self.assertEqual([line for line in now if line not in recorded], [],
                         'new: run tests/proto/wire_test.py --update')

    def test_what_breaks_clients_is_seen(self):
        before = 'message M { int32 a = 1; repeated string b = 2; optional float c = 3; }\n' \
                 'enum E { NONE = 0; ONE = 1; }\nservice S { rpc Call(M) returns (M); }\n'
        changes = {'int32 a = 1': 'int32 a = 7', 'repeated string b': 'string b',
                   'optional float c': 'float c', 'ONE = 1': 'ONE = 2', 'int32 a': 'int64 a',
                   'returns (M)': 'returns (stream M)', 'float c': 'float d'}
        for old, new in changes.items():
            self.assertNotEqual(set(self.lines(before)) - set(self.lines(before.replace(old, new))),
                                set(), new)
        self.assertEqual(set(self.lines(before)) - set(self.lines(before + 'message N {}\n')),
                         set())

    @staticmethod
    def lines(body):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / 'x.proto').write_text('syntax = "proto3";\npackage p;\n' + body,
                                                          encoding='utf-8')
            return wire_lines(folder, 'x.proto')


def update():
    now = wire_lines(ROOT / 'proto', PROTO)
    recorded = RECORD.read_text(encoding='utf-8').splitlines() if RECORD.exists() else []
    gone = [line for line in recorded if line not in now]
    if gone:
        sys.exit('\n'.join(['a breaking change, nothing was written:', *gone]))
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text('\n'.join(now) + '\n', encoding='utf-8')
    print(f'{RECORD.relative_to(ROOT)}: {len(now)} lines')


if __name__ == '__main__':
    if sys.argv[1:] == ['--update']:
        update()
    else:
        unittest.main()
