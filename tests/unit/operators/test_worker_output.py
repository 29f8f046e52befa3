"""What user code prints and logs on a worker reaches the driver, bounded and with its step."""

# ruff: noqa: T201 (what is printed is what is tested)

import io
import logging
import subprocess
import sys
import threading

import pytest

from penstock.operators.worker_output import (
    MOST_CHARACTERS,
    MOST_LINES,
    MOST_TOLD,
    OutputCapture,
    OutputLine,
    speaking_for,
    tell_output,
)


def told(*lines: OutputLine) -> list[str]:
    file = io.StringIO()
    tell_output(lines, file)
    return file.getvalue().splitlines()


def test_printed_lines_come_with_the_step_and_subtask_that_printed_them() -> None:
    with OutputCapture(3) as output:
        with speaking_for("parse"):
            print("one\ntwo")
            with speaking_for("enrich"):
                print("inner", end="")
                sys.stdout.write(" half\n")
            print("outer again", file=sys.stderr)
        lines = output.take()
    assert told(*lines) == [
        "[parse 3] one",
        "[parse 3] two",
        "[enrich 3] inner half",
        "[parse 3] outer again",
    ]


def test_a_line_that_cannot_be_encoded_is_escaped() -> None:
    with OutputCapture(0) as output:
        print("no file a\udcff")
        assert [line.text for line in output.take()] == ["no file a\\udcff"]


def test_a_line_without_an_end_and_one_of_another_thread_arrive_too() -> None:
    with OutputCapture(0) as output:
        thread = threading.Thread(target=print, args=["from a thread"])
        thread.start()
        thread.join()
        with speaking_for("parse"):
            print("no end", end="")
            lines = output.take()
        assert output.take() == ()
    assert told(*lines) == ["[a step 0] from a thread", "[parse 0] no end"]


def test_log_records_keep_logger_level_and_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("shop.parsing")
    with OutputCapture(1, logging.INFO) as output, speaking_for("parse"):
        logger.info("parsed %d", 5)
        logger.debug("too fine for the driver")
        try:
            int("no number")
        except ValueError:
            logger.exception("skipped")
        lines = output.take()
    assert [line.text.splitlines()[0] for line in lines] == ["parsed 5", "skipped"]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        tell_output(lines)
    first, second = caplog.records
    assert (first.name, first.levelname) == ("shop.parsing", "INFO")
    assert first.message == "[parse 1] parsed 5"
    assert second.levelname == "ERROR"
    assert "ValueError: invalid literal" in second.message


def test_a_record_that_a_handler_prints_arrives_once() -> None:
    root = logging.getLogger()
    with OutputCapture(0) as output:
        handler = logging.StreamHandler()
        root.addHandler(handler)
        try:
            logging.getLogger("shop").warning("once")
        finally:
            root.removeHandler(handler)
        assert [line.text for line in output.take()] == ["once"]


def test_what_is_too_much_stays_on_the_worker_and_is_counted(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with OutputCapture(0) as output, speaking_for("chatty"):
        for number in range(MOST_LINES + 7):
            print(number)
        lines = output.take()
        print("x" * (MOST_CHARACTERS + 50))
        (cut,) = output.take()
    assert len(lines) == MOST_LINES
    # The executor's own log has the rest.
    assert capsys.readouterr().err.split() == [str(MOST_LINES + n) for n in range(7)]
    assert len(told(*lines)) == MOST_LINES
    assert "workers wrote 7 more lines" in caplog.text
    assert len(cut.text) == MOST_CHARACTERS + 2


def test_the_driver_tells_only_so_many_lines_of_an_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = OutputLine("chatty", 0, "hello")
    assert len(told(*[line] * (MOST_TOLD + 20))) == MOST_TOLD
    assert "workers wrote 20 more lines" in caplog.text


def test_what_no_report_took_along_goes_to_the_log_of_the_worker(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with OutputCapture(0):
        print("the task fails now")
    assert capsys.readouterr().err == "the task fails now\n"


def test_streams_and_root_logger_are_as_before_afterwards() -> None:
    root = logging.getLogger()
    before = (sys.stdout, sys.stderr, root.level, list(root.handlers))
    with OutputCapture(0, logging.DEBUG):
        assert root.level == logging.DEBUG
    assert (sys.stdout, sys.stderr, root.level, list(root.handlers)) == before


def test_a_stream_that_outlives_its_task_writes_to_the_one_that_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with OutputCapture(0):
        kept = sys.stdout
    print("between tasks", file=kept)
    with OutputCapture(1) as output:
        print("in the next task", file=kept)
        lines = output.take()
    assert told(*lines) == ["[a step 1] in the next task"]
    assert capsys.readouterr().err == "between tasks\n"


def test_a_line_that_never_ends_takes_little_memory_and_time() -> None:
    with OutputCapture(0) as output:
        for _ in range(20_000):
            print("x" * 100, end="")
        assert len(sys.stdout._begun) == MOST_CHARACTERS + 1  # type: ignore[union-attr]
        (cut,) = output.take()
    assert cut.text == "x" * MOST_CHARACTERS + " …"


def test_bytes_and_programs_that_user_code_starts_are_let_through() -> None:
    with OutputCapture(0) as output:
        sys.stdout.buffer.write(b"caf\xc3\xa9 \xff\x00\n")
        assert sys.stdout.encoding == "utf-8"
        done = subprocess.run(["true"], stdout=sys.stderr, check=False)
        lines = output.take()
    assert told(*lines) == ["[a step 0] café \\xff\x00"]
    assert done.returncode == 0


def test_lines_of_several_threads_are_all_there() -> None:
    def write(number: int) -> None:
        for _ in range(200):
            sys.stdout.write(f"{number}\n")

    with OutputCapture(0) as output:
        threads = [threading.Thread(target=write, args=[n]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = output.take()
    assert len(lines) + lines[-1].more == 8 * 200
    assert {line.text for line in lines} <= {str(n) for n in range(8)}
