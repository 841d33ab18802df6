"""What a PDI (the array's configuration in an xclbin) configures.

`image` reads the headers, `commands` the CDO commands, `array` applies them to tiles, `routes` follows the
streams, `summary` says it in lines and in a drawing.

What cannot be read is a :class:`BadPdi` of `read` or `commands`, with its byte; what can be read past is told
in the `problems` of the Image and the Array.
"""

from __future__ import annotations

from amdxdna.pdi.array import Array
from amdxdna.pdi.commands import Command, commands
from amdxdna.pdi.image import BadPdi, Image, is_pdi, read
from amdxdna.pdi.routes import Route, routes

__all__ = ["Array", "BadPdi", "Command", "Image", "Route", "commands", "is_pdi", "read", "routes"]
