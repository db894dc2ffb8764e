"""The notebook runs from top to bottom, and pictures come out."""

import base64
import io

import nbformat
import pytest
from helpers import PATIENCE, ROOT
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient
from PIL import Image

NOTEBOOK = ROOT / 'notebooks' / 'xcit_mm.ipynb'
PICTURES = {'show', 'curve', 'prediction'}  # cells that draw


@pytest.fixture(scope='module')
def cells(tmp_path_factory) -> dict[str, nbformat.NotebookNode]:
    """The cells by id, run with fewer iterations, by the interpreter of the tests."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (settings,) = (c for c in notebook.cells if 'parameters' in c.metadata.get('tags', ()))
    settings.source += '\nIMAGES = 24\nITERATIONS = 6\nSIDES = 64, 128'

    folder = tmp_path_factory.mktemp('jupyter')
    write_kernel_spec(folder / 'kernels' / 'tested')
    resources = {'metadata': {'path': str(NOTEBOOK.parent)}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('JUPYTER_PATH', str(folder))
        options = dict(kernel_name='tested', resources=resources, timeout=PATIENCE)
        NotebookClient(notebook, **options).execute()
    return {cell.id: cell for cell in notebook.cells}


def text(cell: nbformat.NotebookNode) -> str:
    return ''.join(o.text for o in cell.outputs if o.output_type == 'stream')


def pictures_of(cell: nbformat.NotebookNode) -> list[Image.Image]:
    data = [output.get('data', {}).get('image/jpeg') for output in cell.outputs]
    return [Image.open(io.BytesIO(base64.b64decode(jpeg))) for jpeg in data if jpeg]


def test_the_notebook_draws_data_losses_and_predictions(cells):
    assert {c.id for c in cells.values() if c.cell_type == 'code' and pictures_of(c)} == PICTURES
    for name in PICTURES:
        (picture,) = pictures_of(cells[name])
        low, high = picture.convert('L').getextrema()
        assert low < 128 < high, name


def test_the_notebook_shows_the_maps_and_the_predictions(cells):
    maps = '(4, 128, 40, 40)\n(4, 128, 20, 20)\n(4, 128, 10, 10)\n(4, 128, 5, 5)\n'
    assert text(cells['maps']) == maps
    assert text(cells['timing']).count('ns a pixel') == 2
    assert '160, 160)' in text(cells['arrays'])


def test_the_notebook_warns_of_nothing(cells):
    code = [cell for cell in cells.values() if cell.cell_type == 'code']
    assert not [o for c in code for o in c.outputs if o.get('name') == 'stderr']


def test_the_stored_notebook_is_as_it_was_run_at_once():
    """Without outputs, or with those of a single run of all cells."""
    code = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == 'code']
    counts = [cell.execution_count for cell in code]
    assert counts in ([None] * len(code), list(range(1, len(code) + 1)))
    assert 'error' not in {output.output_type for cell in code for output in cell.outputs}
    assert NOTEBOOK.stat().st_size < 500_000
