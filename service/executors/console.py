"""What an attempt printed: kept by its launcher in files of bounded size, and read back from any byte.

`console/OFFSET.log`: each file is named by the offset of its first byte in the whole stream, so a reader that knows
how far it has read finds its place again after any number of rotations. The launcher imports this: nothing that loads
slowly.
"""

from __future__ import annotations

import os

_CHUNK = 1 << 16


class Console:
    """Keeps what the attempt prints in files of bounded size. A full disk loses text, never the attempt."""

    def __init__(self, folder: str, size: int, files: int) -> None:
        self.folder, self.size, self.files = folder, size, files
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.offset = self.length = 0
        self.file = self._open()

    def write(self, content: bytes) -> None:
        """Append, turning to a new file whenever one is full."""
        while content:
            if self.length >= self.size:
                os.close(self.file)
                self.file, self.length = self._open(), 0
                for old in sorted(os.listdir(self.folder))[: -self.files]:
                    os.unlink(os.path.join(self.folder, old))
            piece, content = content[: self.size - self.length], content[self.size - self.length :]
            self.offset += len(piece)
            self.length += len(piece)
            try:
                os.write(self.file, piece)
            except OSError:
                continue

    def close(self) -> None:
        """Close the file that is written to."""
        os.close(self.file)

    def _open(self) -> int:
        path = os.path.join(self.folder, f"{self.offset:015d}.log")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read_console(record: Path, after: int = 0) -> Iterator[bytes]:
    """The stream from byte `after` on, as far as rotation kept it. `record` is the attempt's folder."""
    for path in sorted((record / "console").glob("*.log")):
        start = int(path.stem)
        try:
            with open(path, "rb") as file:
                file.seek(max(0, after - start))
                while chunk := file.read(_CHUNK):
                    yield chunk
        except FileNotFoundError:  # rotated away while this was reading
            continue


def tail(record: Path, size: int = 16_384) -> str:
    """The last bytes of the stream as text."""
    files = sorted((record / "console").glob("*.log"))
    text = b""
    for path in reversed(files):
        try:
            with open(path, "rb") as file:
                length = file.seek(0, 2)
                file.seek(max(0, length - (size - len(text))))
                text = file.read() + text
        except FileNotFoundError:
            continue
        if len(text) >= size:
            break
    return text.decode(errors="replace")
