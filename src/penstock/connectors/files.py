"""Files as a source: JSON lines, CSV, text and Parquet, in a folder of this machine or of object storage.

ps.files("logs", format="json", schema="user string, at timestamp")                  what is there now
ps.files("s3://bucket/logs/*.csv", format="csv", schema=..., follow=True)            and what comes later
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.api.connector import Source, SourceReader, SplitEnumerator
from penstock.connectors.csv_records import CsvRecords
from penstock.connectors.file_examples import example_schema
from penstock.connectors.file_following import FileEnumerator
from penstock.connectors.file_formats import (
    TEXT_SCHEMA,
    BadRows,
    CsvLines,
    JsonLines,
    LineFormat,
    TextLines,
    Treatment,
    Unreadable,
)
from penstock.connectors.file_listing import FileSet, file_set
from penstock.connectors.file_reading import FileSplit, FilesReader, Reading
from penstock.core.errors import UsageError
from penstock.sql.schemas import SchemaLike, as_schema, check_schema

FileFormat = Literal["json", "csv", "parquet", "text"]
"""What `files` can read."""

_CSV_DEFAULTS = (True, ",", ("",), False)


def files(  # noqa: PLR0913  # one keyword per question; all but the format have defaults
    path: str | os.PathLike[str],
    *,
    format: FileFormat,  # noqa: A002  # what everybody calls it
    schema: SchemaLike | None = None,
    follow: bool = False,
    bad_rows: BadRows = "fail",
    bad_rows_column: str = "bad_row",
    header: bool = True,
    delimiter: str = ",",
    null_values: Sequence[str] = ("",),
    multi_line: bool = False,
) -> Files:
    r"""Files of a folder, each read exactly once, whatever fails meanwhile.

    A file counts as complete when it appears under its name: write a file under another name, and rename the file.
    Names that begin with `.` or `_`, or end with `.tmp`, `.part`, `._COPYING_`, `.crdownload` or `~`, are ignored, and
    so are folders of such names. A file must stay as it is until the job has read it and a checkpoint has completed; a
    file whose size changes is refused. Each file is read by one subtask, in its order, and has an event time of its
    own. Files that end with .gz, .bz2, .zst or .lz4 are unpacked, unless they are Parquet.

        >>> import pathlib, tempfile
        >>> from penstock.testing import collect, run
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.json").write_text('{"word": "to", "n": 1}\n{"word": "be", "n": 2}\n')
        >>> words = files(folder, format="json", schema="word string, n bigint")
        >>> run(lambda env: env.read(words).where("n > 1").write(collect()))
        [{'word': 'be', 'n': 2}]

    Args:
        path: a folder, whose sub-folders are read too; a file; or a pattern, in which `*` stands for any letters of a
            name and `**` for any folders. A path that every slot can reach, or a URI that `pyarrow.fs` knows, such as
            `s3://bucket/folder`.
        format: "json" (an object in each line), "csv" (a record in each line; see `multi_line`), "text" (a column
            `line`) or "parquet".
        schema: the columns. JSON and CSV need a schema; of Parquet files, columns are taken by name and cast, and
            without `schema` all columns of the first file are read. JSON fields that are no columns are left out.
        follow: False: read the files that are there when the job starts, and end. True: go on with files that appear
            later, until the job is stopped; a program that is run again goes on with the files that are new. The job
            remembers 24 bytes for each file of the folder in every checkpoint, so move files away that have been read,
            when there are hundreds of thousands. A file that appears with an old time is read too. A name stands for
            one file: give each file a name of its own.
        bad_rows: what becomes of lines that cannot be read. "fail": the job fails, with file, line and reason. "skip":
            the lines are left out, and counted: in a warning, and as `lines_skipped` of `job.view()`. "keep": the text
            of the line is in the column `bad_rows_column` of the stream, and all other columns are null there; in good
            rows the column is null.
        bad_rows_column: the name of that column.
        header: CSV: whether the first line names the columns. Without a header, columns are in the order of `schema`.
        delimiter: CSV: the letter between values.
        null_values: CSV: texts that stand for null, if they are not quoted.
        multi_line: CSV: whether quoted values may have line breaks, as with Spark's option `multiLine`. Errors then
            name the first line of a record.

    """
    if format not in get_args(FileFormat):
        known = ", ".join(map(repr, get_args(FileFormat)))
        raise UsageError(f"format is {format!r}, which ps.files cannot read", hint=f"choose one of {known}")
    if format != "csv" and (header, delimiter, tuple(null_values), multi_line) != _CSV_DEFAULTS:
        raise UsageError(
            f"header, delimiter, null_values and multi_line are for CSV files, and the format is {format!r}",
            hint="leave them out, or give format='csv'",
        )
    found = file_set(path, may_be_missing=follow)
    treatment = Treatment(kind=bad_rows, column=bad_rows_column)
    form: LineFormat | None = None
    match format:
        case "parquet":
            if bad_rows != "fail":
                raise UsageError(f"bad_rows is {bad_rows!r}, and Parquet files have no lines", hint="leave it out")
            columns = _parquet_schema(found) if schema is None else as_schema(schema, argument="schema")
        case "text":
            if schema is not None:
                raise UsageError("text files have the column 'line', and a schema was given", hint="leave it out")
            form = TextLines()
            columns = TEXT_SCHEMA
        case _:
            if schema is None:
                raise UsageError(
                    f"ps.files needs a schema for {format} files",
                    hint=example_schema(found, format, header=header, delimiter=delimiter),
                )
            columns = as_schema(schema, argument="schema")
            kind = CsvRecords if multi_line else CsvLines
            is_json = format == "json"
            form = JsonLines(columns) if is_json else _csv(kind, columns, delimiter, null_values, header=header)
            _try(form)
    reading = Reading(files=found, form=form, columns=treatment.schema_with(columns), treatment=treatment)
    if not follow and not found.listed():
        raise UsageError(
            f"no files are at {os.fspath(path)!r}",
            hint="names that begin with . or _, and names of temporary files, are ignored; follow=True waits for files",
        )
    return Files(reading=reading, follow=follow)


@dataclass(frozen=True, kw_only=True)
class Files(Source):
    """The source that `files` makes. Neither splits nor the enumerator's position are pickled. The source leaves
    nothing outside the job's checkpoints, and changes no file."""

    reading: Reading
    follow: bool

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "files"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "files"

    @property
    def schema(self) -> pa.Schema:
        """The columns, with the column for bad rows if such rows are kept."""
        return self.reading.columns

    @property
    def discovers(self) -> bool:
        """Whether files are found while the job runs."""
        return self.follow

    @property
    def is_unbounded(self) -> bool:
        """Whether the source follows the folder: then files may appear for ever."""
        return self.follow

    @property
    def finds_more_later(self) -> bool:
        """Whether files may have appeared when the program is run again: only if the source follows the folder."""
        return self.follow

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # a file is read by one subtask
        """The files that are there when the job starts; none if the source follows the folder."""
        listed = [] if self.follow else self.reading.files.listed()
        return [msgspec.msgpack.encode(FileSplit(file.name, file.size)) for file in listed]

    def enumerator(self) -> SplitEnumerator:
        """What finds files while the job runs."""
        return FileEnumerator(self.reading.files)

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader of these files. Raises `CorruptFile` for a file that the source cannot have found."""
        return FilesReader(self.reading, splits, follows=self.follow)


def _csv(
    kind: type[CsvLines], schema: pa.Schema, delimiter: str, null_values: Sequence[str], *, header: bool
) -> CsvLines:
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(f"delimiter is {delimiter!r}; give a single letter, such as ',' or '\\t'")
    if isinstance(null_values, str) or not all(isinstance(text, str) for text in null_values):
        raise UsageError(f"null_values is {null_values!r}", hint="give a list of texts, such as ['', 'NULL']")
    return kind(schema, delimiter, tuple(null_values), has_header=header)


def _try(form: LineFormat) -> None:
    """Raise `UsageError` if lines cannot have columns of these types at all."""
    line = b"{}\n" if isinstance(form, JsonLines) else b"," * (len(form.schema.names) - 1) + b'""\n'
    try:
        form.decode(line)
    except pa.ArrowNotImplementedError as error:
        raise UsageError(
            f"the schema has a type that lines of these files cannot have: {error}",
            hint="read the column as a string, and convert it in the next step",
        ) from error
    except (Unreadable, pa.ArrowException):
        # Only the types count: the line itself fits no schema.
        return


def _parquet_schema(files_: FileSet) -> pa.Schema:
    listed = files_.listed()
    if not listed:
        raise UsageError(
            "the columns are told from the first Parquet file, and there is no file", hint="give ps.files a schema"
        )
    shown = files_.shown(listed[0].name)
    try:
        with (
            files_.system().open_input_file(files_.path_of(listed[0].name)) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as opened,
        ):
            found = pa.schema([pa.field(field.name, field.type) for field in opened.schema_arrow])
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(f"{shown} is not a Parquet file that can be read: {error}") from error
    return check_schema(found, argument=f"the schema of {shown}")
