"""Settings for all tests: no deadlines, and only CPU instructions that work.

Virtual machines may report the tile instructions (AMX) of their CPU without allowing them. oneDNN then uses them, and
the first bfloat16 matrix product ends the process. No test needs these instructions.
"""

import os

from hypothesis import settings

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # read at the first product, not at import

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
