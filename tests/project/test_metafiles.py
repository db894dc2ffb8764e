"""model-index.yml says of the published configs what they and docs/weights.md say."""

import re

import pytest
from helpers import ROOT
from mmengine.config import Config
from modelindex.load_model_index import load
from modelindex.models.Model import Model

INDEX = load(str(ROOT / 'model-index.yml'))
BY_NAME = {model.name: model for model in INDEX.models}
DOCSTRINGS = {path.stem: path.read_text() for path in (ROOT / 'configs').glob('*.py')}
PUBLISHED = sorted(name for name, text in DOCSTRINGS.items() if ': published' in text)
TASKS = dict(
    mask_rcnn=[('Object Detection', 'box AP'), ('Instance Segmentation', 'mask AP')],
    sem_fpn=[('Semantic Segmentation', 'mIoU')],
    upernet=[('Semantic Segmentation', 'mIoU')],
)


def results(model: Model) -> tuple[str, list[float]]:
    """Return the parameters in millions, and the metrics."""
    metrics = [value for result in model.results for value in result.metrics.values()]
    return f'{model.metadata.data["Parameters"] / 1e6:.2f}', metrics


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r'[0-9.]+', text)]


def test_the_index_is_valid_and_has_every_published_config():
    assert INDEX.check(silent=True) == []
    (collection,) = INDEX.collections
    assert (ROOT / collection.readme).is_file()
    assert {model.in_collection for model in INDEX.models} == {collection.name} == {'XCiT'}
    assert sorted(model.name for model in INDEX.models) == PUBLISHED  # none twice


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_model_is_described_as_its_config_is(name):
    model, text = BY_NAME[name], DOCSTRINGS[name]
    assert model.config == f'configs/{name}.py'
    assert model.weights == re.search(r'Weights: (\S+)', text)[1]
    published, params = re.search(r'published (.*?); ([0-9.]+) M parameters', text).groups()
    assert results(model) == (params, numbers(published))
    assert [(r.task, *r.metrics) for r in model.results] == TASKS[name.split('_xcit_')[0]]
    (dataset,) = {result.dataset for result in model.results}
    assert f', {dataset.lower()},' in text.lower()
    assert model.metadata.data['Training Data'] == dataset
    cfg = Config.fromfile(ROOT / model.config)
    collection = INDEX.collections[0].metadata.data
    assert collection['Batch Size'] == cfg.auto_scale_lr.base_batch_size
    assert cfg.train_cfg.get('max_epochs') == model.metadata.data.get('Epochs')
    assert cfg.train_cfg.get('max_iters') == model.metadata.data.get('Iterations')


def test_the_documentation_has_the_same_figures():
    cell = r'\[([0-9. /]+)\]\(\.\./configs/(\w+)\.py\) \(([0-9.]+) M\)'
    cells = re.findall(cell, (ROOT / 'docs/weights.md').read_text())
    assert sorted(name for _, name, _ in cells) == PUBLISHED
    for published, name, params in cells:
        assert results(BY_NAME[name]) == (params, numbers(published))
