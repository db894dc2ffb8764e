#!/usr/bin/env python3
"""Draw what an XCiT attends to in an image: class attention, magnitudes of q and k, by head."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

DEFAULT_FOLDER = Path('work_dirs/attention')
PANEL_SIDE = 320  # pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', help='file or URL of an image')
    parser.add_argument(
        'checkpoint',
        help='file, URL or timm://NAME of a classifier or DINO model, which have class attention, '
        'or of a detector, segmentor or backbone',
    )
    parser.add_argument(
        '--layer', type=int, metavar='N', help='layer of q and k, from 0 (default: the last)'
    )
    parser.add_argument(
        '--class-layer',
        type=int,
        metavar='N',
        help='class-attention layer, from 0 (default: the last)',
    )
    parser.add_argument(
        '--heads', type=int, nargs='+', metavar='N', help='heads, from 0 (default: all)'
    )
    parser.add_argument(
        '--size', type=cli.positive, help='resize the shorter side to this many pixels'
    )
    parser.add_argument(
        '--panel',
        type=cli.positive,
        default=PANEL_SIDE,
        metavar='SIDE',
        help='longer side of a panel in pixels (default: %(default)s)',
    )
    parser.add_argument('--device', help='cpu, cuda or cuda:N (default: a GPU if there is one)')
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FILE',
        help=f'PNG to write (default: {DEFAULT_FOLDER}/IMAGE.png)',
    )
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.apps.attention.draw import choose_heads, draw_attention
        from xcit_mm.apps.attention.maps import AttentionProbe, scaled
        from xcit_mm.base.files import require_writable_file
        from xcit_mm.predict.sources import read_image
    out = args.out or DEFAULT_FOLDER / f'{Path(args.image).stem}.png'
    require_writable_file(out)
    image = read_image(args.image)
    if args.size is not None:
        image = scaled(image, args.size / min(image.shape[:2]))
    probe = AttentionProbe(args.checkpoint, args.device, args.trust_checkpoint)
    heads = choose_heads(args.heads, probe.architecture.num_heads)
    maps = probe(image, args.layer, args.class_layer)
    name, weights = (Path(path).name for path in (args.image, args.checkpoint))
    size = '{1}x{0}'.format(*image.shape)
    title = f'{name}, {size} pixels: {probe.architecture}, {weights}'
    draw_attention(out, image, maps, probe.architecture.patch_size, title, heads, args.panel)
    if maps.class_attention is None:
        print('The checkpoint has no class-attention layers: the maps are of q and k alone.')
    print(out)


if __name__ == '__main__':
    cli.run_tool(main)
