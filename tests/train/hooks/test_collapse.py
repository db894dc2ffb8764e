"""A training without labels that gives all images the same features."""

import json

import pytest
import torch
from helpers.toy import Toy, toy_runner
from mmengine.registry import MODELS

from xcit_mm import UserError
from xcit_mm.train.checkpoints.newest import newest_checkpoint

HOOKS = ('NonFiniteHook', 'LossLogHook')
SENTENCE = (
    'iteration {}: feature_spread has been below 0.05 for {} steps (now 0.01), so all images get '
    'the same features (collapse): lower optim_wrapper.optimizer.lr or the temperature of the '
    'teacher, make the crops of an image differ more, and look whether the images of the training '
    'data are all alike'
)


@MODELS.register_module()
class SpreadToy(Toy):
    """Its spread in each step is planned; the number of the step is in a buffer."""

    def __init__(self, spreads: list[float]) -> None:
        super().__init__()
        self.spreads = spreads
        self.register_buffer('step', torch.tensor(0))

    def forward(self, inputs, data_samples=None, mode='loss'):
        spread = torch.tensor(self.spreads[int(self.step)])
        self.step += 1
        return super().forward(inputs) | dict(feature_spread=spread)


def run(work_dir, spreads: list[float], patience: int = 3, **kwargs):
    hooks = [*({'type': name} for name in HOOKS), dict(type='CollapseHook', patience=patience)]
    model = dict(type='SpreadToy', spreads=spreads)
    return toy_runner(work_dir, custom_hooks=hooks, model=model, **kwargs)


def test_a_collapse_stops_the_run_in_one_sentence(tmp_path):
    runner = run(tmp_path, [0.8, *[0.01] * 7])
    with pytest.raises(UserError) as stopped:
        runner.train()
    assert str(stopped.value) == SENTENCE.format(4, 3)
    logged = [json.loads(line)['feature_spread'] for line in (tmp_path / 'losses.jsonl').open()]
    assert logged == pytest.approx([0.8, 0.01, 0.01, 0.01])


def test_only_steps_in_a_row_count(tmp_path):
    spreads = [0.06, 0.01, 0.01, 0.06, float('nan'), 0.01, 0.01, 0.3]
    runner = run(tmp_path, spreads)
    runner.train()
    assert runner.iter == 8
    with pytest.raises(UserError, match=r'iteration 3: .* for 2 steps'):
        run(tmp_path, spreads, patience=2).train()


def test_features_that_have_no_spread_yet_are_given_a_tenth_of_the_training(tmp_path):
    spreads = [0.01] * 8  # as with a LayerScale of 1e-5; the first step is within the tenth
    with pytest.raises(UserError, match=r'iteration 4: .* for 3 steps'):
        run(tmp_path, spreads).train()


def test_a_resumed_run_stops_at_the_same_step(tmp_path):
    spreads = [0.5, *[0.01] * 7]
    run(tmp_path, spreads, patience=4, steps=3).train()
    state = torch.load(tmp_path / 'iter_3.pth', weights_only=False)['message_hub']
    assert state['runtime_info']['collapsed_steps'] == 2
    path, _ = newest_checkpoint(str(tmp_path))
    with pytest.raises(UserError) as stopped:
        run(tmp_path, spreads, patience=4, resume=True, load_from=str(path)).train()
    assert str(stopped.value) == SENTENCE.format(5, 4)


def test_a_batch_of_one_image_is_refused(tmp_path):
    with pytest.raises(UserError) as refused:
        run(tmp_path, [0.5], **{'train_dataloader.batch_size': 1}).train()
    assert str(refused.value).startswith('train_dataloader.batch_size=1: the features of one')
