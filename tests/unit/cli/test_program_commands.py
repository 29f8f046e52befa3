"""Programs are found, loaded and run from the command line, and every mistake gets a sentence."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.programs import load_pipeline
from penstock.cli.running import Until
from penstock.cli.terminal import EXIT_LOSSY
from penstock.errors import UserCodeError, UserError
from penstock.runtime.driver.decide import JobPhase, JobStatus

FUNCTION = """
import penstock as pen

def shop(rows: int = 20, name: str = "shop", *, bad: bool = False) -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    pipeline.read("in", pen.impulse(count=rows)).write("out", pen.blackhole())
    return pipeline
"""
VALUE = """
import penstock as pen

shop = pen.Pipeline("shop")
shop.read("in", pen.impulse(count=20)).write("out", pen.blackhole())

if __name__ == "__main__":
    raise AssertionError("it is not the main program")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(FUNCTION)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_only_pipeline_or_function_of_a_file_is_found(
    tmp_path: Path, program: Path
) -> None:
    assert load_pipeline(str(program)).name == "shop"
    assert load_pipeline(f"{program}:shop", ["name=other"]).name == "other"
    value = tmp_path / "value.py"
    value.write_text(VALUE)
    assert load_pipeline(str(value)).name == "shop"


@pytest.mark.parametrize(
    ("text", "name", "settings", "problem"),
    [
        ("x = 1", "", [], "has no pipeline"),
        (VALUE + "\nother = pen.Pipeline('b')", "", [], "several pipelines: say which"),
        (VALUE, ":shopp", [], r"no pipeline or function 'shopp'; did you mean 'shop'"),
        (VALUE, "", ["rows=1"], "make it a function"),
        (FUNCTION, "", ["rows=many"], "--set rows=many: it is no int"),
        (FUNCTION, "", ["row=1"], "there is no row; did you mean 'rows'"),
        (FUNCTION, "", ["rows"], "not of the form key=value"),
        ("import penstock as pen\ndef f(n) -> pen.Pipeline: ...", "", [], "n is missing"),
        (
            "import penstock as pen\ndef f() -> pen.Pipeline: ...",
            "",
            [],
            "returned NoneType",
        ),
    ],
)
def test_a_program_that_cannot_be_used_gets_a_sentence(
    tmp_path: Path, text: str, name: str, settings: list[str], problem: str
) -> None:
    path = tmp_path / "job.py"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        load_pipeline(f"{path}{name}", settings)


def test_a_program_that_raises_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("1 / 0")
    with pytest.raises(UserCodeError, match=r"job\.py' raised ZeroDivisionError"):
        load_pipeline(str(path))
    with pytest.raises(UserError, match="there is no file"):
        load_pipeline(str(tmp_path / "none.py"))


def test_a_program_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("NAME = 'found'")
    path = tmp_path / "job.py"
    path.write_text(VALUE.replace('"shop"', "NAME") + "\n")
    path.write_text("from beside_it import NAME\n" + path.read_text())
    assert load_pipeline(str(path)).name == "found"


def test_a_job_is_run_planned_and_drawn(program: Path, tmp_path: Path) -> None:
    url = tmp_path / "checkpoints"
    first = run("plan", program, "-c", url)
    assert (first.exit_code, "would start empty" in first.stdout) == (0, True)
    ran = run("run", program, "-c", url, "--in-process", "--set", "rows=30")
    assert ran.exit_code == 0, ran.output
    assert "30 read" in ran.stdout
    planned = json.loads(run("plan", program, "-c", url, "--json").stdout)
    assert (planned["is_possible"], planned["problems"]) == (True, [])
    assert "flowchart" in run("graph", program).stdout
    assert json.loads(run("graph", program, "--format", "json").stdout)


def test_a_plan_that_loses_state_or_is_refused_has_exit_codes_of_its_own(
    tmp_path: Path,
) -> None:
    url, path = tmp_path / "checkpoints", tmp_path / "job.py"
    counting = FUNCTION.replace(
        '.write("out", pen.blackhole())',
        '.key_by("counter").aggregate("count", n=pen.count()).write("out", pen.blackhole())',
    ).replace("count=rows", "rate=rows")
    path.write_text(counting)
    run("run", path, "-c", url, "--in-process", "--until", "epoch:1")
    path.write_text(counting.replace('"count", n', '"other", n'))
    refused = run("plan", path, "-c", url)
    assert refused.exit_code == 9, refused.output
    lossy = run("plan", path, "-c", url, "--allow-dropped")
    assert lossy.exit_code == EXIT_LOSSY, lossy.output


def test_a_job_without_an_end_stops_when_it_was_told_to(
    program: Path, tmp_path: Path
) -> None:
    program.write_text(FUNCTION.replace("count=rows", "rate=rows"))
    url = tmp_path / "checkpoints"
    ran = run("run", program, "-c", url, "--in-process", "--until", "epoch:2")
    assert ran.exit_code == 0, ran.output
    assert "stopped" in ran.stdout


@pytest.mark.parametrize("text", ["epoch:x", "never", "", "epoch:"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="idle, epoch:N, or a time"):
        Until.of(text)


class Job:
    """A job whose statuses are given, one per look."""

    def __init__(self, *statuses: JobStatus) -> None:
        self._statuses = list(statuses)
        self.looks = 0
        self.is_running = True

    @property
    def status(self) -> JobStatus:
        self.looks += 1
        return self._statuses[min(self.looks, len(self._statuses)) - 1]

    def stop(self) -> None:
        self.is_running = False


def test_idle_means_that_nothing_came_for_some_seconds() -> None:
    waiting = JobStatus("a", JobPhase.WAITING, epochs_run=2, rows_read=5)
    busy = JobStatus("a", JobPhase.RUNNING, epochs_run=1, rows_read=3)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    job = Job(*[busy] * 50, *[waiting] * 100)
    Until.of("idle").attend(job, now=lambda: clock[0], sleep=sleep)  # type: ignore[arg-type] # a stand-in
    assert not job.is_running
    assert 7.9 < clock[0] < 8.3
    timed = Job(busy)
    Until.of("10s").attend(timed, now=lambda: clock[0], sleep=sleep)  # type: ignore[arg-type] # a stand-in
    assert 17.9 < clock[0] < 18.4
