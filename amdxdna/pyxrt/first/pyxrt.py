import sys, amdxdna.pyxrt; sys.modules.pop("pyxrt", None); amdxdna.pyxrt.install()  # noqa: E401, E702, I001
