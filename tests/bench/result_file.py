# SPDX-License-Identifier: Apache-2.0
"""How results are written: JSON with a row of a table or of measurements on each line."""

import json


def text_of(value, depth=0):
    """Breaks objects that hold lists, and lists of objects or of lists, into lines."""
    inside, end = '\n' + ' ' * (depth + 1), '\n' + ' ' * depth
    if isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values()):
        fields = [f'{json.dumps(key)}: {text_of(v, depth + 1)}' for key, v in value.items()]
        return '{' + inside + (',' + inside).join(fields) + end + '}' if depth < 3 else json.dumps(value)
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        rows = [text_of(v, depth + 1) if 'rows' in v else json.dumps(v) for v in value]
        return '[' + inside + (',' + inside).join(rows) + end + ']'
    return json.dumps(value)


def write(path, result):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(result) + '\n', encoding='utf-8')
