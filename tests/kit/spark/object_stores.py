"""Places for a lake where nothing can be renamed: an S3 server in this process, and a file system that refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moto.server import ThreadedMotoServer
from pyarrow.fs import FileSelector, FileSystemHandler, LocalFileSystem, PyFileSystem, S3FileSystem


@contextmanager
def s3_bucket(name: str = "bucket") -> Iterator[str]:
    """Yield the URI of a bucket for pyarrow. A path is to be put before its question mark: see `below`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        made = S3FileSystem(
            access_key="key",
            secret_key="secret",
            scheme="http",
            endpoint_override=f"{host}:{port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        made.create_dir(name)
        yield f"s3://key:secret@{name}?scheme=http&endpoint_override={host}%3A{port}&region=us-east-1"
    finally:
        server.stop()


def below(uri: str, path: str) -> str:
    place, _, query = uri.partition("?")
    return f"{place}/{path}?{query}"


class NothingIsRenamed(FileSystemHandler):  # type: ignore[misc]
    """Local files that cannot be renamed, only copied."""

    def __init__(self) -> None:
        self._files = LocalFileSystem()

    def move(self, source: str, target: str) -> None:
        raise OSError(f"{source} cannot be renamed")

    def get_type_name(self) -> str:
        return "nothing-is-renamed"

    def get_file_info_selector(self, selector: FileSelector) -> Any:
        return self._files.get_file_info(selector)

    def get_file_info(self, paths: Any) -> Any:
        return self._files.get_file_info(paths)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._files.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._files.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise OSError("never")

    def delete_file(self, path: str) -> None:
        self._files.delete_file(path)

    def copy_file(self, source: str, target: str) -> None:
        self._files.copy_file(source, target)

    def open_input_stream(self, path: str) -> Any:
        return self._files.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._files.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._files.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise OSError("what is written is written")

    def normalize_path(self, path: str) -> str:
        return path


def nothing_is_renamed() -> PyFileSystem:
    return PyFileSystem(NothingIsRenamed())
