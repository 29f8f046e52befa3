"""JsonParser: JSON objects into rows of a schema, by the rules of schema drift.

Arrow parses a whole text at once, which keeps to the schema strictly; `QuickJson` does the same for
texts that are plain. What they cannot do is done apart, where a rule asks for it:

- A key that is absent is null for Arrow, like one that is null. To tell them apart, records
  that gave a null are looked at by Python's own parser, one at a time.
- A value of another type is refused by Arrow. To cast it, Polars reads single values as text,
  whatever they are, and Arrow casts the text, strictly; times, decimals, bytes, lists and structs
  are not cast.

Both give the same row for a record whatever records are beside it, because a replay may cut them
into other batches. Of a key that occurs twice, Arrow refuses the record; where wider values are
cast, the first one counts.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.formats.drift import (
    DriftRules,
    find_missing,
    find_new,
    read_keys,
)
from penstock.connectors.formats.halving import BadRowError, BadRowsError
from penstock.connectors.formats.json_text import read_objects
from penstock.connectors.formats.json_types import carrier_of, from_carriers
from penstock.connectors.formats.quick_json import NEGATIVE_ZERO, QuickJson
from penstock.core.arrow_types import is_text

Split: TypeAlias = Callable[[], Sequence[bytes]]
"""Returns the records of a text, one by one; called only where a rule needs them."""

_HALF_PAIR: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Matches escapes of characters beyond the 16-bit ones: Polars reads half a pair as nonsense."""

_NO_COLUMNS: Final = pa.schema([])

_MANY_DIGITS: Final = re.compile(rb"[0-9]{19}|(?=[0-9.]{16})[0-9]*[.eE]")
"""Matches numbers that may have more digits than Polars keeps: it reads whole ones of 64 bits, and
others as floats."""


_UNFIT: Final = re.compile(r'["\\\x00-\x1f]')
"""Matches characters that `msgspec` allows in no name of a field."""


class JsonParser:
    """Parses texts of objects for one schema. Used by one thread."""

    def __init__(
        self,
        schema: pa.Schema,
        rules: DriftRules | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self._schema = schema
        self._optional = frozenset(optional)
        self._rules = DriftRules() if rules is None else rules
        self._quick = QuickJson(schema, ignores_extra=self._rules.on_new == "ignore")
        self._castable = pa.schema([f for f in schema if _is_castable(f.type)])
        self._strict = pa.schema([f for f in schema if not _is_castable(f.type)])
        self._exact = _ExactColumns(
            [f.name for f in self._castable if not pa.types.is_floating(f.type)]
        )

    def parse(self, text: Any, split: Split) -> pa.Table:
        """Return the rows of a text; raise an Arrow error or ValueError if one is bad.

        A single record that fails the job by a rule raises `DriftError`.
        """
        try:
            return self._parse(text, split)
        except BadRowsError:
            raise
        except (pa.ArrowException, ValueError):
            rules = self._rules
            if rules.on_new != "ignore":
                self._take_out_new(split(), is_strict=False)
            records = split() if rules.can_fail() else ()
            # Nonsense fails the job by no rule.
            if len(records) == 1 and _is_readable(text):
                rules.check_failing(records[0], self._schema, self._optional)
            raise

    def _parse(self, text: Any, split: Split) -> pa.Table:
        ignores_extra = self._rules.on_new == "ignore"
        try:
            rows = self._quick.parse(text)
            if rows is None:
                rows = read_objects(text, self._schema, ignores_extra=ignores_extra)
        except pa.ArrowInvalid:
            if self._rules.on_wider != "cast":
                raise
            rows = self._cast(text, split())
        if self._rules.on_missing != "null":
            self._check_missing(rows, split)
        return rows

    def _cast(self, text: Any, records: Sequence[bytes]) -> pa.Table:
        if _HALF_PAIR.search(text):
            raise ValueError("it has a value that its column's type does not hold")
        if self._rules.on_new != "ignore":
            self._take_out_new(records, is_strict=True)
        rows = read_objects(text, self._strict, ignores_extra=True)
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        kinds = pl.Struct(dict.fromkeys(self._castable.names, pl.String()))
        try:
            found = (
                pl.Series(records, dtype=pl.Binary).cast(pl.String).str.json_decode(kinds)
            )
        except pl.exceptions.PolarsError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"it cannot be cast: {reason}") from error
        texts: dict[str, Any] = {
            name: found.struct.field(name).to_arrow().cast(pa.string())
            for name in self._castable.names
        }
        if _MANY_DIGITS.search(text):
            self._check_digits(records, texts)
        if NEGATIVE_ZERO.search(text):
            self._mend_zeros(records, texts)
        for field in self._castable:
            values = texts[field.name]
            if pa.types.is_integer(field.type):
                _refuse_hexadecimal(values)
            carried = pa.table({field.name: values.cast(carrier_of(field.type))})
            columns[field.name] = from_carriers(carried, pa.schema([field])).column(0)
        names = self._schema.names
        return pa.Table.from_arrays([columns[name] for name in names], names)

    def _check_digits(self, records: Sequence[bytes], texts: Mapping[str, Any]) -> None:
        """Raise `BadRowError` for a number of which Polars has kept fewer digits than it had."""
        for place, record in enumerate(records):
            if not (_MANY_DIGITS.search(record) and self._exact.has_long(record)):
                continue
            found = _read_numbers(record)
            for name in self._exact.names:
                number, text = found.get(name), texts[name][place].as_py()
                if isinstance(number, _Number) and Decimal(number) != Decimal(text):
                    reason = f"column {name!r} cannot hold all digits of {number}"
                    raise BadRowError(reason, place)

    def _mend_zeros(self, records: Sequence[bytes], texts: dict[str, Any]) -> None:
        """Give zeros back the sign that Polars dropped."""
        floats = [f.name for f in self._castable if pa.types.is_floating(f.type)]
        negative = {name: np.zeros(len(records), dtype=np.bool_) for name in floats}
        for place, record in enumerate(records):
            if floats and NEGATIVE_ZERO.search(record):
                found = _read_numbers(record)
                for name in floats:
                    negative[name][place] = found.get(name) == "-0"
        for name, places in negative.items():
            if places.any():
                texts[name] = pc.if_else(pa.array(places), "-0", texts[name])

    def _take_out_new(self, records: Sequence[bytes], *, is_strict: bool) -> None:
        """Raise `BadRowsError` for records with new columns: all at once, as all may have them.

        Records whose keys cannot be told apart are left to Arrow, unless it is strict.
        """
        told: dict[int, str] = {}
        for place, record in enumerate(records):
            found = _look_into(record, place) if is_strict else read_keys(record)
            new = None if found is None else next(find_new(found, self._schema), None)
            if new is not None:
                told[place] = f"it has the new column {new!r}"
        self._raise_by("on_new", told)

    def _raise_by(self, rule: str, told: Mapping[int, str]) -> None:
        """Raise `BadRowsError` for records that are bad by a rule, if there are any."""
        if not told:
            return
        fails = getattr(self._rules, rule) == "fail"
        more = f', and {rule} is "fail"' if fails else ""
        raise BadRowsError({at: what + more for at, what in told.items()}, fails=fails)

    def _check_missing(self, rows: pa.Table, split: Split) -> None:
        has_null = np.zeros(rows.num_rows, dtype=np.bool_)
        for column in rows.columns:
            if column.null_count:
                has_null |= column.is_null().to_numpy()
        if not has_null.any():
            return
        records = split()
        if len(records) != rows.num_rows:
            raise ValueError(f"it holds {rows.num_rows} objects instead of one")
        told: dict[int, str] = {}
        for place in np.flatnonzero(has_null).tolist():
            found = _look_into(records[place], place)
            missing = next(find_missing(found, self._schema, self._optional), None)
            if missing is not None:
                told[place] = f"it has no column {missing!r}"
        self._raise_by("on_missing", told)


def _look_into(record: bytes, place: int) -> dict[str, Any]:
    """Return a record whose keys a rule asks for; raise `BadRowError` where they cannot be told."""
    found = read_keys(record)
    if found is None:
        raise BadRowError(
            "its columns cannot be told apart: a key occurs twice, or it is nested too deep",
            place,
        )
    return found


def _is_readable(text: Any) -> bool:
    """Tell whether a record can be read at all, whatever columns it has."""
    try:
        read_objects(text, _NO_COLUMNS, ignores_extra=True)
    except (pa.ArrowException, ValueError):
        return False
    return True


class _ExactColumns:
    """The columns that hold a number as it is, or not at all: all but floats."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._can_look = not any(map(_UNFIT.search, names))
        if not self._can_look:
            return
        fields = [(f"column_{place}", msgspec.Raw, b"") for place in range(len(names))]
        spelled = {field[0]: name for field, name in zip(fields, names, strict=True)}
        kind = msgspec.defstruct("_Tokens", fields, rename=spelled)
        self._decode = msgspec.json.Decoder(kind).decode
        self._tokens = [attrgetter(field[0]) for field in fields]

    def has_long(self, record: bytes) -> bool:
        """Tell whether one of them may have a number of many digits. It is the quick look of two."""
        if not self._can_look:
            return True
        try:
            found = self._decode(record)
        except (msgspec.DecodeError, RecursionError):
            return True  # it may hold NaN, or be bad for another reason
        tokens = (bytes(token(found)) for token in self._tokens)
        return any(_MANY_DIGITS.match(token.lstrip(b"-")) for token in tokens)


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _read_numbers(record: bytes) -> dict[str, Any]:
    """Return a record with numbers as they were written; of a key that occurs twice the first."""
    try:
        found = json.loads(
            record,
            parse_int=_Number,
            parse_float=_Number,
            object_pairs_hook=lambda pairs: dict(reversed(pairs)),
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep to be cast") from error
    return found if isinstance(found, dict) else {}


def _refuse_hexadecimal(values: Any) -> None:
    """Raise ValueError for text that Arrow reads as a number, and no other reader does."""
    if pc.any(pc.match_substring_regex(values, "^[+-]?0[xX]")).as_py():
        raise ValueError("it has a hexadecimal number, which is not cast")


def _is_castable(kind: Any) -> bool:
    """Tell whether single values of JSON may be cast to a type: all but those told by text."""
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_duration(kind)
    is_label = types.is_dictionary(kind) and is_text(kind.value_type)
    return bool(is_number or types.is_boolean(kind) or is_label or is_text(kind))
