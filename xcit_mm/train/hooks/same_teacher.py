"""A run that resumes has the teacher that it started with."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.errors import UserError
from ..distributed import unwrapped


@HOOKS.register_module()
class SameTeacherHook(Hook):
    """Refuse to resume with other weights of the teacher, which no checkpoint holds.

    Raises:
        UserError: If the digest in the checkpoint is not the digest of the teacher.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        teacher = unwrapped(runner.model).description.get('teacher')
        before = (checkpoint.get('meta') or {}).get('teacher')
        are_known = runner._resume and before and teacher
        if are_known and before['digest'] != teacher['digest']:
            raise UserError(
                f'the weights of the teacher have changed since this run began: it learns from '
                f'{before["name"]} ({before["weights"]}, digest {before["digest"]}), but '
                f'{teacher["weights"]} has the digest {teacher["digest"]}: name the same weights, '
                'or start a run from what is learned: load_from=FILE without --resume'
            )
