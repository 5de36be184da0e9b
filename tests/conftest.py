"""What every test needs: no time asserted, not even by a default, and no instruction that a processor only claims.

Virtual machines may announce the tile instructions (AMX) of their processor and not allow them: oneDNN believes it,
and the first product in bfloat16 ends the process. Nothing here needs them.
"""

import os

from hypothesis import settings

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # read at the first product, not at import

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
