"""The page: drop a picture, choose a model, see what it finds."""

import html
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UserError, reason
from ..inference import Detections, Segmentation
from ..inference.infer import SCORE_THR
from .choices import Models, require_offered
from .pictures import read_picture
from .predictor import Predictor
from .uploads import UploadsOnly, gr, names_a_file
from .views import View, draw, rows, summary

TITLE = 'What XCiT sees'
HOW = (
    'Drop a picture: what the model finds in it appears beside it. Sliders and switches draw '
    'anew, without asking the model again.'
)
TYPED = 'A file or an address can be typed, too.'
MAX_UPLOAD = 50  # MB
NOTHING_YET = 'Nothing to see yet.'

Upload = Mapping[str, Any]  # what Gradio tells of an uploaded file


@dataclass(frozen=True)
class Kept:
    """What is drawn anew when a slider moves.

    Attributes:
        found: The prediction.
        origin: What it is from, and how long it took.
    """

    found: Detections | Segmentation
    origin: str


class DemoPage:
    """A page for detectors and segmentors.

    Args:
        models: Gives the models to choose from, whenever the page is opened or used.
        any_checkpoint: Whether visitors can name other files or addresses of weights. They are
            read without running anything in them.
        examples: Pictures to try a model with.
        max_upload: The largest file that is taken, in MB of 2**20 bytes.

    Attributes:
        max_upload: As above.
    """

    def __init__(
        self,
        models: Callable[[], Models],
        any_checkpoint: bool = False,
        examples: Sequence[Path] = (),
        max_upload: float = MAX_UPLOAD,
    ) -> None:
        self._models = models
        self._any_checkpoint = any_checkpoint
        self._examples = [str(path) for path in examples]
        self.max_upload = max_upload
        self._predictor = Predictor()

    @classmethod
    def of_one(cls, config: str, checkpoint: str, **options: Any) -> 'DemoPage':
        """A page of a single model, which is read at once.

        Args:
            config: Path of a config file.
            checkpoint: File or URL of its weights.
            **options: ``any_checkpoint``, ``examples`` and ``max_upload``, as above.

        Raises:
            UserError: If they are wrong, or do not fit each other.
        """
        page = cls(lambda: {config: [checkpoint]}, **options)
        page._predictor.load(config, checkpoint)
        return page

    def build(self) -> gr.Blocks:
        """Lay it out.

        Returns:
            Gradio's page, to be launched.
        """
        built_with = self._models()
        with UploadsOnly(title=TITLE, analytics_enabled=False) as page:
            gr.Markdown(f'# {TITLE}\n{HOW}')
            kept = gr.State()
            with gr.Row():
                with gr.Column():
                    picture = gr.Image(
                        label=f'Picture of at most {self.max_upload:g} MB',
                        sources=['upload', 'clipboard'],
                    )
                    config = gr.Dropdown(label='Config', **self._configs())
                    checkpoint = gr.Dropdown(
                        label='Checkpoint',
                        info=TYPED if self._any_checkpoint else None,
                        **self._checkpoints(config.value),
                    )
                    button = gr.Button('Find', variant='primary')
                    if self._examples:
                        gr.Examples(self._examples, picture, elem_id='examples')
                with gr.Column():
                    status = gr.HTML(_said('status', NOTHING_YET))
                    result = gr.Image(
                        label='Result',
                        format='jpeg',
                        interactive=False,
                        elem_id='result',
                        buttons=['download', 'fullscreen'],  # the third sends it to Hugging Face
                    )
                    with gr.Row(visible=False) as for_detections:
                        score = gr.Slider(0, 1, SCORE_THR, step=0.01, label='Lowest score', scale=2)
                        boxes = gr.Checkbox(True, label='Boxes', min_width=100)
                        masks = gr.Checkbox(True, label='Masks', min_width=100)
                    with gr.Row(visible=False) as for_segmentation:
                        opacity = gr.Slider(0, 1, 0.5, step=0.01, label='Opacity')
                    table = gr.Dataframe(label='Found', interactive=False, visible=False)

            view = [score, boxes, masks, opacity]
            shown = [status, result, table]
            page.load(
                partial(self._offer_newer, built_with),
                None,
                [config, checkpoint],
                show_progress='hidden',
            )
            config.input(self._offer_checkpoints, config, checkpoint, show_progress='hidden')
            gr.on(
                [picture.change, button.click],
                self._find,
                [config, checkpoint, picture, *view],
                [*shown, kept, for_detections, for_segmentation],
                preprocess=False,  # the uploaded file as it is: we say what is wrong with one
            )
            gr.on(
                [control.change for control in view],
                _draw_anew,
                [kept, *view],
                shown,
                show_progress='hidden',
                trigger_mode='always_last',
            )
        return page

    def _configs(self) -> dict[str, Any]:
        return _dropdown(list(self._models()), can_type=False)

    def _checkpoints(self, config: str) -> dict[str, Any]:
        return _dropdown(self._models().get(config, []), can_type=self._any_checkpoint)

    def _offer_newer(self, built_with: Models) -> tuple:
        """When a page is opened while a training goes on; else nothing, not to undo a choice."""
        if self._models() == built_with:
            return gr.skip(), gr.skip()
        configs = self._configs()
        return gr.Dropdown(**configs), gr.Dropdown(**self._checkpoints(configs['value']))

    def _offer_checkpoints(self, config: str) -> gr.Dropdown:
        return gr.Dropdown(**self._checkpoints(config))

    def _find(self, config: str, checkpoint: str, picture: Upload | None, *view: Any) -> tuple:
        try:
            chosen = View(*view)
            kept = self._ask(config, checkpoint, picture)
            shown = _show(kept, chosen)
        except UserError as error:
            return _nothing(str(error))
        except Exception as error:  # the page stays, whatever becomes of one picture
            traceback.print_exc()
            return _nothing(f'the model cannot be asked ({reason(error)})')
        is_detection = isinstance(kept.found, Detections)
        return (
            *shown,
            kept,
            gr.Row(visible=is_detection),
            gr.Row(visible=not is_detection),
        )

    def _ask(self, config: str, checkpoint: str, picture: Upload | None) -> Kept:
        require_offered(config, checkpoint, self._models(), self._any_checkpoint)
        if not names_a_file(picture):
            raise UserError('no picture is chosen: drop one into the field on the left')
        image = read_picture(picture['path'], self.max_upload)
        found, seconds = self._predictor.predict(config, checkpoint, image)
        return Kept(found, f'found in {seconds:.2f} s by {checkpoint}')


def _dropdown(choices: Sequence[str], can_type: bool) -> dict[str, Any]:
    return dict(
        choices=list(choices),
        value=choices[0] if choices else None,
        interactive=can_type or len(choices) > 1,
        allow_custom_value=can_type,
    )


def _draw_anew(kept: Kept | None, *view: Any) -> tuple:
    if kept is None:
        message = 'what was found is not kept any longer: press Find once more'
        return _said('alert', message), gr.skip(), gr.skip()
    try:
        return _show(kept, View(*view))
    except UserError as error:
        return _said('alert', str(error)), gr.skip(), gr.skip()


def _show(kept: Kept, view: View) -> tuple:
    return (
        _said('status', f'{summary(kept.found, view)}, {kept.origin}'),
        draw(kept.found, view),
        gr.Dataframe(rows(kept.found, view), visible=True),
    )


def _nothing(message: str) -> tuple:
    hidden = gr.Row(visible=False)
    return _said('alert', message), None, gr.Dataframe(visible=False), None, hidden, hidden


def _said(role: str, message: str) -> str:
    """HTML, with the role by which a screen reader reads it aloud."""
    colour = 'var(--error-text-color)' if role == 'alert' else 'inherit'
    return f'<p role="{role}" style="color: {colour}">{html.escape(message)}</p>'
