"""Gathers the mistakes of a pipeline step by step, and raises all of them at once.

A step that cannot work notes its error and returns a broken stream. The steps behind it still
check what does not depend on its columns (names, windows, configs), and note nothing that is
only a consequence of the first mistake. `Pipeline.graph` then raises everything, and with it
every method that runs or explains a pipeline.

Only a `UserError` is gathered, because the user can correct the pipeline. A store that does
not answer while columns are inferred, or a failure in an operator's own code, is raised at
once.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from penstock.errors import ErrorCode, GraphError, UserError

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = Path(__file__).parent.parent


class Problems:
    """The mistakes of one pipeline so far, in the order they were written. Only grows."""

    def __init__(self) -> None:
        self._noted: list[tuple[UserError, str]] = []
        """What a step raised, and how it is listed: with the step, and where it was written."""
        self.step = "a step"
        """The step that mistakes are attributed to."""

    def noting(self, step: str | None = None) -> "Noting":
        """Return a block whose mistake is noted, so that the code behind it still runs.

        With `step`, mistakes inside the block are listed as mistakes of that step.
        """
        return Noting(self, step or self.step)

    def note(self, error: UserError) -> None:
        """Keep a mistake, unless it is only the consequence of one that is kept already."""
        if error.code is ErrorCode.BROKEN_INPUT:
            return
        where, start = _where_user_wrote(), self.step
        if where is not None:
            error.add_note(f"written at {where}, in {self.step}")
            start = f"{where}, {self.step}"
        # The frames of the step would keep its data alive; the note holds file and line.
        error.__traceback__ = None
        self._noted.append((error, f"{start}: {error.message}"))

    def __bool__(self) -> bool:
        return bool(self._noted)

    def refuse(self, job: str, others: Sequence[str] = ()) -> NoReturn:
        """Raise the only mistake itself, or one error that lists all of them, `others` last."""
        if len(self._noted) == 1 and not others:
            # Every call raises this same error: it must not keep the frames of the last call.
            raise self._noted[0][0].with_traceback(None)
        problems = (*(listed for _, listed in self._noted), *others)
        listed = "\n  ".join(problem.replace("\n", "\n    ") for problem in problems)
        raise GraphError(
            f"pipeline {job!r} has {len(problems)} mistakes:\n  {listed}",
            job=job,
            problems=problems,
        )


class Noting:
    """A block whose mistake is noted, not raised.

    It is no generator, so that all frames between the user and the error are Penstock's own.
    """

    def __init__(self, problems: Problems, step: str) -> None:
        self._problems = problems
        self._step = step

    def __enter__(self) -> None:
        self._outer, self._problems.step = self._problems.step, self._step

    def __exit__(self, _kind: object, error: object, _traceback: object) -> bool:
        if isinstance(error, UserError):
            self._problems.note(error)
        self._problems.step = self._outer
        return isinstance(error, UserError)


def step(
    instead: Callable[[Any], Any], *, is_named: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method a step: its mistake is gathered, and it returns what `instead` makes.

    `instead` is called with the object of the method, and returns a value of the method's own
    return type. With `is_named` the first argument is `name`, and is required.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kind = function.__name__
        parameter = inspect.signature(function).parameters.get("name")
        # An aggregate may be called "name", so its step takes the name by position only.
        may_be_keyword = parameter and parameter.kind is not parameter.POSITIONAL_ONLY

        @wraps(function)
        def gather(*args: P.args, **kwargs: P.kwargs) -> R:
            # The object has the graph builder, which gathers problems and can reserve a name.
            builder = cast(Any, args[0]).builder
            name: object = None
            if is_named and len(args) > 1:
                name = args[1]
            elif is_named and may_be_keyword:
                name = kwargs.get("name")
            shown = f"{kind} {name!r}" if isinstance(name, str) else kind
            problems: Problems = builder.problems
            with problems.noting(shown):
                if is_named:
                    _check_name(kind, name)
                return function(*args, **kwargs)
            if isinstance(name, str):
                builder.reserve(name)
            return cast(R, instead(args[0]))

        return gather

    return decorate


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str):
        has_text = type(name).__str__ is not object.__str__
        shown = str(name) if has_text else f"a value of type {type(name).__name__}"
        instead = "" if name is None else f", not {shown}"
        raise UserError(
            f"{kind} needs a name first{instead}: a stable one, because it is the identity "
            f'of the state of the step. Write {kind}("some-name", …)',
            code=ErrorCode.INVALID_NAME,
        )


def _where_user_wrote() -> str | None:
    """Return file and line of the innermost call that is not Penstock's own."""
    frame = inspect.currentframe()
    while frame is not None:
        if not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
