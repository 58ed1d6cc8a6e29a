"""What the files of this directory share (geometry.py) can be imported by its name."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
