# SPDX-License-Identifier: Apache-2.0
"""The README.md of an exported model, as a hub shows it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from deeppcr.exporting.report import ExportReport


def write_card(
    folder: pathlib.Path, report: ExportReport, config: dict[str, Any], source: str
) -> None:
    """`folder`: that of the model, above its versions. A card that is there stays."""
    path = folder / "README.md"
    if path.exists():
        return
    call = (
        f'client.generate("{folder.name}", 16, seed=0)'
        if config["model_type"] == "diffusion"
        else f'client.forward("{folder.name}", inputs)  # [n, {config["input_dim"]}]'
    )
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

with deeppcr.serve("{folder.parent.name or "."}") as server:
    client = server.client()
    print({call})
```

```json
{json.dumps(config, indent=1)}
```
"""
    )
