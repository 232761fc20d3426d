"""The form of `POST /v1/files`, read as it arrives: a file, and a few short fields before it or behind it.

The bytes of the file are handed on piece by piece, so that room is reserved for them before they are written and they
lie nowhere but where uploads lie. Everything else in the form is kept in memory, and bounded. Starlette's own reader of
forms writes the whole body into the folder for temporary files first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from service.api.problems import Problem

LARGEST_REST = 64 << 10
"""Bytes of everything in the form that is not the file: names, fields, headers."""
MOST_FIELDS = 10


class FileForm:
    """A form with one file, in its field `file`. Whatever reads it raises Problem for a form that is none."""

    def __init__(self, request: Request) -> None:
        kind, options = parse_options_header(request.headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise _refused("Send the file as multipart/form-data, with the fields 'file' and 'purpose'")
        length = request.headers.get("content-length", "")
        self.least = max(0, int(length) - LARGEST_REST) if length.isascii() and length.isdigit() else 0
        """Bytes that the file has at least, by the announced length of the body; 0 where none is announced."""
        self.fields: dict[str, str] = {}
        """The other fields that have arrived."""
        self._filename: str | None = None
        self._body = request.stream()
        self._pieces: list[bytes] = []
        self._in_file = self._whole = False
        self._rest = 0
        self._name = ""
        self._value = bytearray()
        self._header, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._take_header,
                    "on_header_value": self._take_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._take,
                    "on_part_end": self._end,
                },
            )
        except FormParserError:
            raise _refused("The form's boundary is too long") from None

    async def filename(self) -> str | None:
        """Read on up to the file, or to the end of a form that has none; the name that it was sent under."""
        while self._filename is None and await self._more():
            pass
        return self._filename

    async def content(self) -> AsyncIterator[bytes]:
        """The bytes of the file; behind the last one, all fields have arrived."""
        more = True
        while more:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
            more = await self._more()
        if not self._whole:
            raise _refused("The form ends in the middle of its file")

    async def _more(self) -> bool:
        piece = await anext(self._body, None)
        if piece is None:
            return False
        try:
            self._parser.write(piece)
        except FormParserError:
            raise _refused("The body is no form: its parts cannot be told apart") from None
        return True

    # ---- what the parser finds ---------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._rest += size
        if self._rest > LARGEST_REST:
            raise _refused(f"The form has more than {LARGEST_REST} bytes beside its file")

    def _begin(self) -> None:
        self._in_file, self._name, self._disposition = False, "", b""
        self._value = bytearray()

    def _take_header(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header, self._header_value = bytearray(), bytearray()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise _refused("A part of the form has no name")
        self._name = _text(options[b"name"])
        if b"filename" in options:
            if self._name != "file" or self._filename is not None:
                raise _refused("The form may have one file, in the field 'file'")
            self._in_file, self._filename = True, _text(options[b"filename"])
        elif len(self.fields) >= MOST_FIELDS:
            raise _refused(f"The form may have at most {MOST_FIELDS} fields beside its file")

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._pieces.append(data[start:end])
        else:
            self._count(end - start)
            self._value += data[start:end]

    def _end(self) -> None:
        if self._in_file:
            self._whole = True
        else:
            self.fields[self._name] = _text(bytes(self._value))


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _refused(sentence: str) -> Problem:
    return Problem(400, f"{sentence}.", "invalid_request")
