import re
import shutil
from itertools import chain
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ADDRESS = 'https://github.com/xcit-mm/xcit_mm'
version = next(
    line.split("'")[1]
    for line in Path('xcit_mm/base/version.py').read_text(encoding='utf-8').splitlines()
    if line.startswith('__version__')
)
onnx = ['onnx>=1.16', 'onnxruntime>=1.18', 'onnxscript>=0.5']
# What single tools need beyond training.
tools = {
    'classify': ['timm>=1.0.9'],
    'eval': ['faster-coco-eval>=1.6'],
    'vis': ['tensorboard>=2.14'],
    'wandb': ['wandb>=0.19'],
    # mlflow-skinny reaches a server; the other two store runs in a file.
    'mlflow': ['mlflow-skinny>=3', 'sqlalchemy>=2', 'alembic>=1.13'],
    'export': onnx,
    'openvino': [*onnx, 'openvino>=2025.2', 'nncf>=2.17'],
    'demo': ['gradio>=6'],
    'hub': ['huggingface_hub>=1.0', 'safetensors>=0.4'],
    'retrieval': ['faiss-cpu>=1.8', 'asmk>=0.1.1', 'pyarrow>=16'],
    'results': ['supervision>=0.28', 'pandas>=2.2'],
    'multiband': ['tifffile>=2023.7'],
    'large': [
        'openslide-python>=1.4',
        'openslide-bin>=4.0',
        'pyogrio>=0.10',
        'tifffile>=2023.7',
        'zarr>=3; python_version >= "3.11"',  # Zarr 3 has no release for Python 3.10
    ],
    'mim': ['openmim>=0.3.9', 'setuptools<81'],  # mim imports pkg_resources, which 81 dropped
}
test = [
    'pytest>=8',
    'pytest-xdist>=3.7',
    'rio-cogeo>=5',  # validates cloud-optimized GeoTIFF files
    *chain.from_iterable(
        tools[name] for name in ('classify', 'eval', 'multiband', 'large', 'retrieval')
    ),
]

# What OpenMMLab's mim reads, in the package's folder .mim.
MIM = ('model-index.yml', 'configs/**/*.py', 'configs/*.yml', 'tools/*.py')


class BuildWithMim(build_py):
    """Copy what mim reads from where it is, also if git made no links to it, as on Windows."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for path in chain.from_iterable(Path().glob(pattern) for pattern in MIM):
                target = Path(self.build_lib, 'xcit_mm', '.mim', path)
                self.mkpath(str(target.parent))
                shutil.copyfile(path, target)


def page() -> str:
    """Return the README with absolute links, as a package index shows it."""
    text = Path('README.md').read_text(encoding='utf-8')
    raw = ADDRESS.replace('github.com', 'raw.githubusercontent.com')
    text = re.sub(r'(!\[[^]]*\]\()(?!\w+:|#)', rf'\g<1>{raw}/v{version}/', text)
    return re.sub(r'((?<!!)\[[^]]*\]\()(?!\w+:|#)', rf'\g<1>{ADDRESS}/blob/v{version}/', text)


setup(
    name='xcit_mm',
    version=version,
    description='XCiT backbones for mmdetection and mmsegmentation, for images of any size',
    long_description=page(),
    long_description_content_type='text/markdown',
    author='The xcit_mm authors',
    url=ADDRESS,
    project_urls={
        'Documentation': f'{ADDRESS}/blob/main/docs/README.md',
        'Source': ADDRESS,
        'Changelog': f'{ADDRESS}/blob/main/CHANGELOG.md',
        'Issues': f'{ADDRESS}/issues',
        'Paper': 'https://arxiv.org/abs/2106.09681',
    },
    keywords=[
        *('XCiT', 'object detection', 'instance segmentation', 'semantic segmentation'),
        *('vision transformer', 'mmdetection', 'mmsegmentation', 'OpenMMLab', 'PyTorch'),
        *('remote sensing', 'whole-slide images', 'ONNX', 'DINO'),
    ],
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        *(f'Programming Language :: Python :: 3.{minor}' for minor in range(10, 15)),
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: Scientific/Engineering :: Image Recognition',
        'Typing :: Typed',
    ],
    license='Apache-2.0',
    license_files=['LICENSE', 'NOTICE'],
    # The editable install is then a plain path. A folder with the name of the package, such as the
    # folder of a clone, does not hide the package from a script next to it.
    package_dir={'': '.'},
    packages=find_packages(include=['xcit_mm', 'xcit_mm.*']),
    # The command is a module of its own because the package imports PyTorch, which takes seconds.
    py_modules=['xcit_mm_command'],
    entry_points={'console_scripts': ['xcit = xcit_mm_command:main']},
    # .mim is where OpenMMLab's mim looks: links in the clone, files in what is built from it.
    package_data={
        'xcit_mm': [
            'py.typed',
            'train/report/page.html',
            *(f'.mim/{pattern}' for pattern in MIM),
        ]
    },
    cmdclass={'build_py': BuildWithMim},
    python_requires='>=3.10',
    # mmengine, mmcv, mmdet and mmseg come under two families of names: see the extras.
    install_requires=[
        'torch>=2.6',
        'argcomplete>=3.2',
        'filelock>=3.30',
        'torchvision>=0.21',
        'jinja2>=3.1',
        'matplotlib>=3.6',
        'numpy>=1.24',
        'pillow>=10.1',
        'psutil>=5.9',
        'pycocotools>=2.0.7',
        'pyyaml>=6.0',
        'rasterio>=1.4',  # reads all TIFF files
        'rich>=13',
        'shapely>=2.1',
    ],
    extras_require={
        'onedl': [
            'onedl-mmengine>=0.10.12,<0.11',
            'onedl-mmcv>=2.3.6,<2.4',
            'onedl-mmdetection>=3.5.1,<3.6',
            'onedl-mmsegmentation>=1.4.2,<1.5',
        ],
        'openmmlab': [
            'mmengine>=0.10.7,<0.11',
            'mmcv-lite>=2.1.0,<2.2',
            'mmdet>=3.3.0,<3.4',
            'mmsegmentation>=1.2.2,<1.3',
            'ftfy>=6.0',  # mmsegmentation imports both without requiring them
            'regex',
        ],
        **tools,
        'test': test,
        'docs': [  # the reference imports every module
            *chain.from_iterable(tools.values()),
            'sphinx>=8.1',
            'myst-parser>=4.0',
            'furo>=2024.8.6',
        ],
        'dev': [  # all tests, and the style
            *chain.from_iterable(tools.values()),
            *test,
            'ruff>=0.6',
            'codespell>=2.3',
            'ipykernel>=6.29',
            'nbclient>=0.10',
            'playwright>=1.45',  # drives the browser of the system, and brings none
        ],
    },
)
