# SPDX-License-Identifier: Apache-2.0
"""The README.md of an exported model, as a hub shows it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from deeppcr.exporting.report import ExportReport


def _call(name: str, config: dict[str, Any]) -> str:
    """One that runs as it is printed."""
    if config["model_type"] != "diffusion":
        inputs = f"[[0.0] * {config['input_dim']}]"
        return f'client.forward("{name}", {inputs})'
    given = ""
    if "conditioning_dim" in config:
        given = f", conditioning=[0.0] * {config['conditioning_dim']}"
    elif config.get("num_classes"):
        given = ", class_labels=[0] * 16"
    return f'client.generate("{name}", 16, seed=0{given})'


def write_card(
    folder: pathlib.Path, report: ExportReport, config: dict[str, Any], source: str
) -> None:
    """`folder`: that of the model, above its versions. A card that is there stays."""
    path = folder / "README.md"
    if path.exists():
        return
    call = _call(folder.name, config)
    path.write_text(
        f"""---
library_name: deeppcr
tags: [deeppcr]
---

# {folder.name}

A {report.model}, made of `{source}` by `deeppcr.export` and served by DeepPCR Serve.

When it was exported, answers of {report.answers} were off by {report.error:.1e} from those of the
module in {report.reference}, and PyTorch's in float32 by {report.torch_error:.1e}, relative to the
largest of the numbers that were compared at once.

```python
import deeppcr

with deeppcr.serve({json.dumps(folder.parent.name or ".", ensure_ascii=False)}) as server:
    client = server.client()
    print({call})
```

```json
{json.dumps(config, indent=1)}
```
"""
    )
