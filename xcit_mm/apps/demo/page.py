"""The page: its fields for a picture and a model, and the predictions that it shows."""

import html
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like, traverse
from PIL import Image

from ...base.errors import UserError, reason
from ...predict.results import SCORE_THR, Detections, Heights, Segmentation
from .models import OfferedModels

Prediction = Detections | Heights | Segmentation

TITLE = 'What XCiT sees'
ENDS = ('lowest', 'highest')
MAX_SIDE = 2048  # pixels; the models of our configs use no larger picture
CLEANING = 600, 3600  # seconds between removals of pictures, and the age of those


class UploadsOnly(gr.Blocks):
    """A page of Gradio that refuses requests with other files than those uploaded to it.

    Gradio itself downloads a file of any size if a request has its address, and opens any file of
    this machine that a request does not mark as a file.
    """

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any):
        traverse(inputs, _require_upload, _is_file)
        return await super().preprocess_data(block_fn, inputs, *args, **kwargs)


class Answers:
    """What the page answers to a choice of a model, and to a picture."""

    def __init__(self, models: OfferedModels) -> None:
        self._models = models

    def offer(self, config: str | None = None) -> tuple[gr.Dropdown, gr.Dropdown]:
        offered = self._models.find()
        config = config if config in offered else next(iter(offered), None)
        checkpoints = offered.get(config, [])
        checkpoint = checkpoints[0] if checkpoints else None
        return gr.Dropdown(list(offered), value=config), gr.Dropdown(checkpoints, value=checkpoint)

    def find(self, config: Any, checkpoint: Any, picture: np.ndarray | None) -> tuple:
        try:
            if picture is None:
                raise UserError('no picture is chosen: drop one into the field on the left')
            model = self._models.load(config, checkpoint)
            image = Image.fromarray(picture)
            image.thumbnail((MAX_SIDE, MAX_SIDE))
            start = time.perf_counter()
            prediction = model.predict(np.array(image))
        except UserError as error:
            raise _error(str(error)) from None
        except Exception as error:  # the page stays
            traceback.print_exc()
            raise _error(f'the model failed ({reason(error)})') from None
        status = f'found in {time.perf_counter() - start:.2f} s by {checkpoint}'
        is_detection = isinstance(prediction, Detections)
        return prediction, status, gr.Row(visible=is_detection), gr.Row(visible=not is_detection)


def build_page(models: OfferedModels, examples: Sequence[Path], max_upload: float) -> gr.Blocks:
    """Build the page with pictures to try, for uploads of at most ``max_upload`` MB."""
    answers = Answers(models)
    with UploadsOnly(title=TITLE, analytics_enabled=False, delete_cache=CLEANING) as page:
        gr.Markdown(f'# {TITLE}\nDrop a picture: the objects or classes in it appear next to it.')
        prediction = gr.State()
        with gr.Row():
            with gr.Column():
                label = f'Picture of at most {max_upload:g} MB'
                picture = gr.Image(label=label, sources=['upload', 'clipboard'])
                config = gr.Dropdown(label='Config')
                any_value = dict(allow_custom_value=models.any_checkpoint)
                checkpoint = gr.Dropdown(label='Checkpoint', **any_value)
                button = gr.Button('Find', variant='primary')
                if examples:
                    gr.Examples(list(map(str, examples)), picture, elem_id='examples')
            with gr.Column():
                status = gr.Textbox('Nothing to see yet.', show_label=False, elem_id='status')
                # The third button of Gradio sends the picture to Hugging Face.
                buttons = ['download', 'fullscreen']
                result = gr.Image(label='Result', format='jpeg', buttons=buttons, elem_id='result')
                with gr.Row(visible=False) as for_detections:
                    score = gr.Slider(0, 1, SCORE_THR, step=0.01, label='Lowest score', scale=2)
                    boxes = gr.Checkbox(True, label='Boxes', min_width=100)
                    masks = gr.Checkbox(True, label='Masks', min_width=100)
                with gr.Row(visible=False) as for_segmentation:
                    opacity = gr.Slider(0, 1, 0.5, step=0.01, label='Opacity')
                table = gr.Dataframe(visible=False)
        view = [prediction, score, boxes, masks, opacity]
        page.load(answers.offer, None, [config, checkpoint])
        config.input(answers.offer, config, [config, checkpoint])
        gr.on(
            [picture.change, button.click],
            answers.find,
            [config, checkpoint, picture],
            [prediction, status, for_detections, for_segmentation],
            concurrency_limit=1,
            show_progress_on=[status, result],
        ).success(_draw, view, [result, table], show_progress='hidden')
        changes = [control.change for control in view[1:]]
        options = dict(show_progress='hidden', trigger_mode='always_last')
        gr.on(changes, _draw, view, [result, table], **options)
    return page.queue(api_open=False)


def _draw(
    prediction: Prediction | None, score: float, boxes: bool, masks: bool, opacity: float
) -> tuple[np.ndarray, gr.Dataframe]:
    if prediction is None:
        raise _error('the prediction is no longer kept: press Find again')
    if isinstance(prediction, Heights):
        rows = [
            [name, f'{height:.4g}'] for name, height in zip(ENDS, prediction.limits, strict=True)
        ]
        label, headers = 'Heights', ['Place', 'Height']
        picture = prediction.draw(opacity)
    elif isinstance(prediction, Segmentation):
        classes = prediction.classes
        rows = [[classes[i], f'{share:.1%}'] for i, share in prediction.shares().items()]
        label, headers = f'{len(rows)} classes', ['Class', 'Share of the picture']
        picture = prediction.draw(opacity)
    else:
        shown, classes = prediction.above(score), prediction.classes
        best = {i: shown.scores[shown.labels == i].max() for i in set(shown.labels.tolist())}
        counts = Counter(shown.labels.tolist()).most_common()
        rows = [[classes[i], number, f'{best[i]:.2f}'] for i, number in counts]
        label, headers = f'{len(shown)} of {len(prediction)} objects', ['Class', 'Objects', 'Score']
        picture = shown.draw(boxes, masks)
    return picture, gr.Dataframe(dict(headers=headers, data=rows), label=label, visible=True)


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get('path'), str)


def _require_upload(value: dict[str, Any]) -> None:
    path, folder = Path(value['path']).resolve(), Path(get_upload_folder()).resolve()
    if is_http_url_like(value['path']) or not (path.is_relative_to(folder) and path.is_file()):
        raise _error(f'{value["path"]} was not uploaded to this page: drop the picture into it')


def _error(message: str) -> gr.Error:
    return gr.Error(html.escape(str(UserError(message))), duration=None, print_exception=False)
