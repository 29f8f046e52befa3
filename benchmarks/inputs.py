"""What comparisons read: numbered Parquet files, made once, the same on every machine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_FILE = 500_000
FILES, QUICK_FILES, WARM_UP_FILES = 40, 8, 6
_FOLDER = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Input:
    """Files of `ROWS_PER_FILE` rows each, in order of time. Plain data: sides get it as it is."""

    name: str
    schema: pa.Schema
    time_column: str
    make: Callable[[int], pa.RecordBatch]
    """Returns the rows of a file, given its number."""
    files: int = FILES
    quick_files: int = QUICK_FILES
    warm_up_files: int = WARM_UP_FILES

    def folder(self, *, quick: bool) -> Path:
        """Return a folder with all files; they are written on first use."""
        return self._folder_of(self.quick_files if quick else self.files)

    def warm_up_folder(self) -> Path:
        """Return a folder with the first few of them."""
        return self._folder_of(self.warm_up_files)

    def _folder_of(self, count: int) -> Path:
        folder = _FOLDER / self.name / f"{count}-files"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            path = folder / f"{self.name}-{number:03}.parquet"
            if not path.exists():
                unfinished = path.with_suffix(".part")
                pq.write_table(pa.Table.from_batches([self.make(number)]), unfinished)
                unfinished.rename(path)
        return folder
