"""What bad operators and sources are told: kept as text, one section for each mistake.

To keep changed texts: `python -m tests.golden.error_messages.test_bad_input`.
"""

import re
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.graph.logical import Exchange
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.driver.policies import RestartPolicy
from tests.builders.driven_job import DrivenJob, Ledger
from tests.builders.scripted import PLAIN, link
from tests.golden.error_messages.bad_parts import BAD

KEPT = Path(__file__).parent / "bad_input.txt"
_TRACEBACK = "Traceback (most recent call last):"
_SHORT = SourceBudget(wall_micros=10_000, overrun_micros=40_000)
_OVERRUN = {"spins", "emits-for-ever"}
"""Parts that overrun on purpose; the time of others depends on how busy the machine is."""


def a_job(name: str) -> DrivenJob:
    part = BAD[name]
    job = DrivenJob(
        budget=_SHORT if name in _OVERRUN else SourceBudget(),
        restarts=RestartPolicy(max_restarts=0),
    )
    job.add("read", part.source, watermark=part.watermark)
    job.add("op", part.operator, part.stream)
    job.add("write", Ledger().sink, PLAIN if part.stream.time_column else part.stream)
    by_key = Exchange.BY_KEY if part.stream.key_columns else Exchange.REBALANCE
    job.join(link("read", "op", exchange=by_key), link("op", "write"))
    return job


def message_of(name: str) -> str:
    """Return everything a user reads, but for the lines of the traceback."""
    job = a_job(name)
    try:
        job.run()
    except PenstockError as error:
        assert job.statuses[-1].phase is JobPhase.FAILED
        facts = ", ".join(f"{k}={v}" for k, v in sorted(error.context.items()))
        notes = list(getattr(error, "__notes__", ()))
        lines = [f"{type(error).__name__} ({error.code}; {facts})", error.message]
        lines += [note for note in notes if not note.startswith(_TRACEBACK)]
        if any(note.startswith(_TRACEBACK) for note in notes):
            lines.append("(traceback)")
        return "\n".join(lines)
    raise AssertionError(f"{name} ran through")


def sections() -> dict[str, str]:
    parts = KEPT.read_text(encoding="utf-8").split("## ")[1:]
    return {name: text.strip("\n") for name, _, text in (p.partition("\n") for p in parts)}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_part_is_told_what_is_kept(name: str) -> None:
    assert message_of(name) == sections()[name]


def test_every_kept_text_belongs_to_a_bad_part_and_names_who_did_it() -> None:
    assert list(sections()) == list(BAD)
    for text in sections().values():
        assert re.search(r"'(op|read)'", text)


@pytest.mark.parametrize("name", BAD)
def test_nothing_of_a_bad_epoch_is_published(name: str) -> None:
    job = a_job(name)
    with pytest.raises(PenstockError):
        job.run()
    epochs_that_went_well = 1 if name == "goes-back-in-time" else 0
    assert len(job.checkpoints.epochs()) == epochs_that_went_well


if __name__ == "__main__":
    KEPT.write_text(
        "".join(f"## {name}\n{message_of(name)}\n\n" for name in BAD), encoding="utf-8"
    )
