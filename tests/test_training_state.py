"""What a checkpoint holds beside the weights: a run goes on from it, or the part is named."""

import pytest
import torch

from xcit_mm import UserError
from xcit_mm.engine.training_state import require_training_state


def of_a_run(**changes) -> dict:
    """What mmengine's runner writes, with values at dotted paths exchanged."""
    checkpoint = {
        'meta': {'epoch': 3, 'iter': 0},
        'state_dict': {'a': torch.zeros(1)},
        'message_hub': {'log_scalars': {}, 'runtime_info': {}, 'resumed_keys': {}},
        'optimizer': {'state': {}, 'param_groups': [{'params': []}], 'loss_scaler': {}},
        'param_schedulers': [{'last_step': 3}],
    }
    for path, value in changes.items():
        outer, _, last = path.rpartition('.')
        (checkpoint[outer] if outer else checkpoint)[last] = value
    return checkpoint


@pytest.mark.parametrize('schedulers', [[], [{}], {}, {'generator': [{}]}])
def test_what_the_runner_writes_can_be_resumed(schedulers):
    require_training_state(of_a_run(param_schedulers=schedulers), 'run.pth')


@pytest.mark.parametrize(
    ('path', 'values'),
    [
        ('meta', [None, 3, [], {}]),
        ('meta.epoch', [None, -1, True, 1.0, '1', torch.tensor(1), [1]]),
        ('meta.iter', [None, -1, False, 1.0, '1']),
        ('state_dict', [None, 3, []]),
        ('message_hub', [None, [], 'hub', {}]),
        ('message_hub.log_scalars', [None, []]),
        ('message_hub.runtime_info', [None, 1]),
        ('message_hub.resumed_keys', [None, 'a']),
        ('optimizer', [None, [], {}, {'state': {}}]),
        ('optimizer.state', [None, []]),
        ('optimizer.param_groups', [None, {}, [1], (1,)]),
        ('param_schedulers', [None, 3, [1], {'a': {}}, {'a': None}]),
    ],
)
def test_a_part_that_is_missing_or_of_a_wrong_kind_is_named(path, values):
    for value in values:
        with pytest.raises(
            UserError, match=rf'run\.pth .*holds no valid .*{path}.*load_from=run\.pth'
        ):
            require_training_state(of_a_run(**{path: value}), 'run.pth')


@pytest.mark.parametrize('content', [None, 3, [], 'a', {'a': torch.zeros(1)}])
def test_weights_alone_cannot_be_resumed(content):
    with pytest.raises(UserError, match=r'run\.pth cannot be resumed'):
        require_training_state(content, 'run.pth')
