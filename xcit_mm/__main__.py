"""The command ``xcit`` as ``python -m xcit_mm``, which torchrun can start."""

from xcit_mm_command import main

if __name__ == '__main__':
    main()
