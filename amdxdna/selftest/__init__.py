"""What `selftest` and `bench` do with an open NPU: steps with checked data, measurements, a given program.

:mod:`~amdxdna.selftest.probes` has the small things that doctor tries, too.
"""
