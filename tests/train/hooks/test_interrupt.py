"""What a run says when a signal arrives."""

import signal
from types import SimpleNamespace

import pytest

from xcit_mm.train.hooks.interrupt import InterruptHook


@pytest.mark.parametrize(
    ('saved', 'in_validation', 'place'),
    [(3, False, 'this step'), (4, True, 'this step'), (3, True, 'this validation and the next')],
)
def test_a_signal_says_what_is_finished_before_the_run_stops(capfd, saved, in_validation, place):
    hook, runner = InterruptHook(), SimpleNamespace(iter=4)
    hook._checkpoints = [SimpleNamespace(written=saved)]
    hook.before_val(runner)
    if not in_validation:
        hook.after_val(runner)
    hook._on_signal(signal.SIGTERM, None)
    assert f'stopping after {place}' in capfd.readouterr().err
