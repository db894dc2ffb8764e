#!/usr/bin/env python3
"""Draw what an XCiT attends to in an image: class attention, magnitudes of q and k, by head."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import imports

with imports():
    from xcit_mm import cli
    from xcit_mm.arguments import positive
    from xcit_mm.attention.draw import PANEL_SIDE, choose_heads, draw_attention
    from xcit_mm.attention.maps import AttentionProbe, resized
    from xcit_mm.files import require_writable_file
    from xcit_mm.inference.sources import read_image

DEFAULT_FOLDER = Path('work_dirs/attention')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', help='a file or its URL')
    parser.add_argument(
        'checkpoint',
        help='a file, its URL, or timm://NAME: a classifier or DINO model, which have class '
        'attention, or a detector, segmentor or backbone',
    )
    parser.add_argument(
        '--layer', type=int, metavar='N', help='of q and k, from 0; default: the last'
    )
    parser.add_argument(
        '--class-layer', type=int, metavar='N', help='of class attention, from 0; default: the last'
    )
    parser.add_argument('--heads', type=int, nargs='+', metavar='N', help='from 0; default: all')
    parser.add_argument(
        '--size', type=positive, help='shorter side of the image, in pixels; default: as it is'
    )
    parser.add_argument(
        '--panel',
        type=positive,
        default=PANEL_SIDE,
        metavar='SIDE',
        help='longer side of each panel, in pixels (default: %(default)s)',
    )
    parser.add_argument('--device', help='cpu, cuda or cuda:N; default: a GPU where there is one')
    parser.add_argument(
        '--out', type=Path, metavar='FILE', help=f'PNG; default: {DEFAULT_FOLDER}/IMAGE.png'
    )
    cli.add_trust_argument(parser)
    args = parser.parse_args()
    out = args.out or DEFAULT_FOLDER / f'{Path(args.image).stem}.png'
    require_writable_file(out)

    image = read_image(args.image)
    image = image if args.size is None else resized(image, args.size)
    probe = AttentionProbe(args.checkpoint, args.device, args.trust_checkpoint)
    heads = choose_heads(args.heads, probe.kind.num_heads)
    maps = probe(image, args.layer, args.class_layer)
    name, weights = (Path(path).name for path in (args.image, args.checkpoint))
    size = '{1}x{0}'.format(*image.shape)
    title = f'{name}, {size} pixels: {probe.kind}, {weights}'
    draw_attention(out, image, maps, probe.kind.patch_size, title, heads, args.panel)
    if maps.class_attention is None:
        print('The checkpoint has no class-attention layers: the maps are of q and k alone.')
    print(out)


if __name__ == '__main__':
    cli.run_tool(main)
