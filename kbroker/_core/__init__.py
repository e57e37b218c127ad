"""The compiled core. Cython only: bytes in, bytes or integers out, and the hot state of partitions and connections.

Nothing here opens a file by name or reads a setting. Read `log/partition.pxd` and `server/processor.pxd` first: the
.pxd files are the reading copy of the whole package.
"""

try:
    from kbroker._core.base import build_info as _build_info  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("kbroker's compiled core is not built: run make build in its clone") from error
