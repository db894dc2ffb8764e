"""The model card: the task, the use and the metrics of a model."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from ...base.errors import UserError, reason
from ...network import XCiT
from ...network.weights.hub import HUB
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
MARKDOWN = re.compile(r'([\\`*_{}\[\]<>()#|!&~])')


def read_metrics(path: Path, checkpoint: str | Path | None) -> dict[str, float]:
    """Return the metrics in a file of ``tools/test.py --out``, without the metrics of each class.

    Raises:
        UserError: If the file cannot be read, or was written for another checkpoint.
    """
    try:
        report = json.loads(path.read_bytes())
        tested, metrics = str(report['checkpoint']), dict(report['metrics'])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f'--metrics {path} is not a file of tools/test.py --out ({reason(error)})'
        ) from None
    if Path(tested).name != Path(str(checkpoint)).name:
        raise UserError(
            f'--metrics {path} has the metrics of {tested}, not of {checkpoint}: evaluate it with '
            'tools/test.py --out'
        )
    of_classes = tuple(kind + start for kind in KINDS for start in OF_CLASS)
    return {
        name: value
        for name, value in metrics.items()
        # COCO's -1 stands for a size that no object has.
        if isinstance(value, Real) and math.isfinite(value) and value != -1
        if not name.startswith(of_classes)
    }


@dataclass
class Card:
    """The content of a model card.

    Attributes:
        repo: ``owner/name`` on the hub.
        model: The model.
        metrics: Its metrics by name.
        dataset: The name of the dataset on which they were measured.
        license: Identifier of a license, or None.
        picture: The name of an image file next to the card, or None.
    """

    repo: str
    model: Model
    metrics: Mapping[str, float]
    dataset: str
    license: str | None
    picture: str | None

    def text(self) -> str:
        """Return the card as Markdown with a header in YAML."""
        from huggingface_hub import EvalResult, ModelCardData

        task = TASKS[self.model.task]
        if self.model.task == 'detection' and getattr(self.model.module, 'with_mask', False):
            task = WITH_MASKS
        results = [
            EvalResult(
                task_type=task,
                dataset_type=self.dataset,
                dataset_name=self.dataset,
                metric_type=name,
                metric_name=title(name),
                metric_value=value,
            )
            for name, value in self.metrics.items()
        ]
        data = ModelCardData(
            library_name=LIBRARY,
            license=self.license,
            tags=[LIBRARY, 'xcit', self.model.task],
            pipeline_tag=task,
            datasets=[self.dataset] if results else None,
            model_name=self.repo.partition('/')[2],
            eval_results=results or None,
        )
        parts = [f'---\n{data.to_yaml()}\n---', *self._sections()]
        return '\n\n'.join(parts) + '\n'

    def _sections(self) -> list[str]:
        module, name = self.model.module, self.repo.partition('/')[2]
        millions = sum(p.numel() for p in module.parameters()) / 1e6
        backbone = ''
        if isinstance(module.backbone, XCiT):
            backbone = f' on {architecture(module.state_dict(), self.repo)}'
        sections = [
            f'# {_plain(name)}',
            f'A {type(module).__name__}{backbone} with {millions:.2f} M parameters, trained with '
            f'{LIBRARY}. The task is {self.model.task}.',
        ]
        if self.picture is not None:
            sections.append(f'![Predictions]({self.picture})')
        source = HUB + self.repo
        sections += [
            '## Use',
            f"```python\nfrom xcit_mm import load_model\n\nmodel = load_model('{source}')\n"
            "prediction = model.predict('image.jpg')\n```",
            f'```bash\ntools/infer.py {source} image.jpg --out predictions\n```',
        ]
        if self.metrics:
            rows = [f'| {_plain(title(n))} | {value:.4g} |' for n, value in self.metrics.items()]
            sections += [
                '## Metrics',
                f'Measured on {_plain(self.dataset)} with `tools/test.py`.',
                '\n'.join(['| Metric | Value |', '|---|---|', *rows]),
            ]
        if self.model.classes:
            sections += ['## Classes', ', '.join(map(_plain, self.model.classes))]
        return sections


def _plain(text: str) -> str:
    """Return text in which no character has a meaning in Markdown or HTML."""
    return MARKDOWN.sub(r'\\\1', text)
