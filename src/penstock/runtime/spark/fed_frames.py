"""DataFrames on their way from a source's plan to the epoch that reads them, by name.

A DataFrame belongs to the driver's process and cannot be part of a plan; its name can.
"""

from pyspark.sql import DataFrame

from penstock.errors import InternalError

_FRAMES: dict[str, DataFrame] = {}


def offer_frame(name: str, frame: DataFrame) -> None:
    """Let the next epoch of the source of this name read a DataFrame; it replaces the last one."""
    _FRAMES[name] = frame


def fed_frame(name: str) -> DataFrame:
    """Return what the source of this name offered last."""
    frame = _FRAMES.get(name)
    if frame is None:
        raise InternalError(
            f"an epoch is to read the DataFrame {name!r}, which nobody gave"
        )
    return frame


def withdraw_frame(name: str) -> None:
    """Forget a DataFrame: what it refers to may be large."""
    _FRAMES.pop(name, None)
