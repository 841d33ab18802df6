import sys

import amdxdna.pyxrt

sys.modules.pop("pyxrt", None)
amdxdna.pyxrt.install()
