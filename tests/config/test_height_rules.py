"""Parts of a config that mix heights with classes are refused before anything is built."""

import pytest
from helpers.heights import CONFIG
from helpers.runs import SEGMENTOR

from xcit_mm import UserError
from xcit_mm.config.height_rules import check_heights
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check_scope
from xcit_mm.config.tta import use_tta

ALL = ('train', 'val', 'test')
HEAD = 'model.decode_head'
LOSS = {f'{HEAD}.loss_decode.type': 'LabeledSiLogLoss'}


def test_configs_of_heights_and_of_classes_pass():
    for config in (CONFIG, SEGMENTOR):
        check_heights(load_config(config), ALL)
    check_heights(load_config(CONFIG, LOSS | {f'{HEAD}.positive': True}), ALL)


@pytest.mark.parametrize(
    ('config', 'options', 'message'),
    [
        (
            CONFIG,
            {f'{HEAD}.type': 'FPNHead'},
            'model.decode_head: FPNHead predicts classes, but the model is an '
            "AlignedDepthEstimator: write type='HeightHead'",
        ),
        (
            CONFIG,
            {'model.type': 'EncoderDecoder'},
            "model.decode_head: HeightHead predicts heights, but model.type='EncoderDecoder' makes "
            "classes of them: write 'AlignedDepthEstimator'",
        ),
        (
            CONFIG,
            LOSS,
            'model.decode_head: LabeledSiLogLoss needs positive heights, and has no gradient where '
            'a height is not positive: write positive=True',
        ),
        (
            CONFIG,
            {f'{HEAD}.loss_decode.type': 'SiLogLoss'},
            'model.decode_head: the gradient of SiLogLoss is NaN for an image without a label: '
            'write LabeledSiLogLoss',
        ),
        (
            CONFIG,
            {'val_evaluator.type': 'ClassIoUMetric'},
            'val_evaluator: ClassIoUMetric measures classes, but the model is an '
            "AlignedDepthEstimator: write dict(type='HeightMetric')",
        ),
        (
            SEGMENTOR,
            {'test_evaluator.type': 'HeightMetric'},
            "test_evaluator: HeightMetric measures heights, but model.type='AlignedEncoderDecoder' "
            "predicts none: write 'AlignedDepthEstimator', or use another metric",
        ),
        (
            CONFIG,
            {'train_dataloader.dataset.type': 'BaseSegDataset'},
            'train_dataloader: BaseSegDataset has labels of classes, but the model is an '
            "AlignedDepthEstimator: write type='HeightDataset'",
        ),
        (
            CONFIG,
            {'val_dataloader.dataset.pipeline.1.type': 'LoadAnnotations'},
            'val_dataloader: the pipeline of HeightDataset loads no heights: add dict(type='
            "'LoadHeights') after the loader of the image",
        ),
        (
            CONFIG,
            {'model.test_cfg.mode': 'slide'},
            "model.test_cfg.mode='slide': an AlignedDepthEstimator ignores it: write mode='whole'; "
            'tools/infer.py --sliced predicts slices',
        ),
        (
            CONFIG,
            {'stream': dict(memory='1GiB')},
            'stream: a training or a test on whole images is possible with classes or objects, not '
            'with heights: set stream=None; tools/infer.py --stream predicts heights',
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(config, options, message):
    cfg = load_config(config, options)
    check_scope(cfg)
    with pytest.raises(UserError) as raised:
        check_heights(cfg, ALL)
    assert str(raised.value) == message


def test_augmentation_at_test_time_is_refused():
    with pytest.raises(UserError, match='--tta merges the scores of classes, not heights: leave'):
        use_tta(load_config(CONFIG))
