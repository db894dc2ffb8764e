"""The model card: the task, the use and the metrics of a model."""

import json
import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from ...base.shipped import HUB
from ...network import XCiT
from ...network.weights.names import architecture
from ...predict.model import Model
from ...train.report.titles import KINDS, OF_CLASS, title

LIBRARY = 'xcit_mm'
# The tasks of the hub.
TASKS = {
    'detection': 'object-detection',
    'segmentation': 'image-segmentation',
    'panoptic': 'image-segmentation',
    'heights': 'depth-estimation',
}
WITH_MASKS = 'image-segmentation'
TEMPLATE = """\
---
{{ card_data }}
---

# {{ model_name | e }}

A {{ kind }} with {{ '%.2f' % millions }} M parameters, trained with xcit_mm.
The task is {{ task }}.
{% if picture %}
![Predictions]({{ picture }})
{% endif %}
## Use

```python
from xcit_mm import load_model

model = load_model('{{ source }}')
prediction = model.predict('image.jpg')
```

```bash
tools/infer.py {{ source }} image.jpg --out predictions
```
{% if metrics %}
## Metrics

Measured on {{ dataset | e }} with `tools/test.py`.

| Metric | Value |
|---|---|
{% for name, value in metrics.items() -%}
| {{ name | e }} | {{ '%.4g' % value }} |
{% endfor %}
{%- endif %}
{%- if classes %}
## Classes

{{ classes | join(', ') | e }}
{% endif %}"""


def read_metrics(path: Path) -> dict[str, float]:
    """Return the metrics in a file of ``tools/test.py --out``, without those of each class."""
    metrics = json.loads(path.read_bytes())['metrics']
    of_classes = tuple(kind + start for kind in KINDS for start in OF_CLASS)
    return {
        name: value
        for name, value in metrics.items()
        # COCO's -1 stands for a size that no object has.
        if isinstance(value, Real) and math.isfinite(value) and value != -1
        if not name.startswith(of_classes)
    }


def model_card(
    repo: str,
    model: Model,
    metrics: Mapping[str, float],
    dataset: str,
    license: str | None,
    picture: str | None,
) -> str:
    """Return a model card as Markdown with a header in YAML.

    Args:
        repo: ``owner/name`` on the hub.
        model: The model.
        metrics: Its metrics by name.
        dataset: The name of the dataset on which they were measured.
        license: Identifier of a license, or None.
        picture: The name of an image file next to the card, or None.
    """
    from huggingface_hub import ModelCard, ModelCardData

    module = model.module
    task = TASKS[model.task]
    if model.task == 'detection' and getattr(module, 'with_mask', False):
        task = WITH_MASKS
    data = ModelCardData(
        library_name=LIBRARY,
        license=license,
        tags=[LIBRARY, 'xcit', model.task],
        pipeline_tag=task,
        datasets=[dataset] if metrics else None,
        model_name=repo.partition('/')[2],
        eval_results=_results(metrics, task, dataset) or None,
    )
    kind = type(module).__name__
    if isinstance(module.backbone, XCiT):
        shape = architecture(module.state_dict(), repo)
        kind += f' on {shape._replace(patch_size=module.backbone.patch_size)}'
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        kind=kind,
        millions=sum(p.numel() for p in module.parameters()) / 1e6,
        task=model.task,
        picture=picture,
        source=HUB + repo,
        metrics={title(metric): value for metric, value in metrics.items()},
        dataset=dataset,
        classes=model.classes,
    )
    return str(card)


def _results(metrics: Mapping[str, float], task: str, dataset: str) -> list[Any]:
    """Return metrics as the ``EvalResult`` objects of the hub."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=task,
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=metric,
            metric_name=title(metric),
            metric_value=value,
        )
        for metric, value in metrics.items()
    ]
