"""What an export writes, and which combinations there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from .formats import BY_NAME


@dataclass(frozen=True)
class ExportSettings:
    """What :func:`.export` writes.

    Attributes:
        format: A name in ``BY_NAME``.
        precision: 'float32', 'float16' or 'int8'.
        part: 'model', or 'backbone' for its maps alone.
        calibrate: Images and folders that calibrate int8, of which up to 100 images are used.
        verify: Images and folders to compare on, of which up to 100 images are used.
        gather: Sample by gathers in the deformable attention of DINO, Deformable DETR and
            Mask2Former, because some runtimes lack ``grid_sample``.
        deepness: Side of the tiles, in pixels, of a file for Deepness, a plugin of QGIS.
        resolution: With ``deepness``, the resolution at which maps are predicted, in meters per
            pixel. None: Deepness asks.
    """

    format: str = 'onnx'
    precision: str = 'float32'
    part: str = 'model'
    calibrate: Sequence[str] = ()
    verify: Sequence[str] = ()
    gather: bool = False
    deepness: int | None = None
    resolution: float | None = None

    def require_fitting(self, path: Path, checkpoint: str | Path | None) -> None:
        """Raise a UserError if the settings do not fit each other, the file or the checkpoint."""
        chosen = BY_NAME[self.format]
        if path.suffix != chosen.suffix:
            raise UserError(
                f'{path}: a file of the format {self.format} has the suffix {chosen.suffix}'
            )
        if self.precision not in chosen.precisions:
            others = [name for name, f in BY_NAME.items() if self.precision in f.precisions]
            raise UserError(
                f'the format {self.format} has no {self.precision}: use --format '
                f'{" or ".join(others)}, or --precision {chosen.precisions[-1]}'
            )
        if self.precision == 'int8' and not self.calibrate:
            raise UserError(
                'int8 needs some of your images to find the ranges of values: --calibrate FOLDER'
            )
        if self.deepness and (self.format, self.part) != ('onnx', 'model'):
            raise UserError('Deepness reads whole models in ONNX files: omit --format and --part')
        if checkpoint is None and (self.calibrate or self.verify or self.deepness):
            raise UserError(
                '--calibrate, --verify and --deepness need a trained model: name its checkpoint '
                'after the config'
            )
