"""setuptools' build backend, from a clean tree.

setuptools never deletes from `build/lib`: a file removed from the source since the last build in
this folder, such as a migration, would still be in the next wheel.
"""

import shutil
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - every hook but one is setuptools' own


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Remove what earlier builds left, then build the wheel (PEP 517)."""
    for left_over in (*Path("build").glob("lib*"), *Path("build").glob("bdist.*")):
        shutil.rmtree(left_over)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
