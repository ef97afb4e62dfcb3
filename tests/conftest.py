"""What every test may rely on."""

import os

# pytest-xdist tells its workers how wide the terminal is; tables are to be whole unless a test says
# otherwise.
os.environ.pop("COLUMNS", None)
