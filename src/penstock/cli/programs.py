"""Loads a pipeline from a program: a pipeline of the file, or a function that returns one.

    job.py                 the only pipeline, or the only function that returns one
    job.py:shop            the pipeline or function of this name
    --set rows=100         an argument of the function, read as the type that it is annotated with

The file is loaded as a module of its own, not as `__main__`: what a program does under
`if __name__ == "__main__":` is not done. What it defines is sent to workers by value, as if it
were the main program.
"""

import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from penstock.api.pipeline import Pipeline
from penstock.errors import ErrorCode, PenstockError, UserCodeError, UserError, did_you_mean
from penstock.operators.user_functions import send_by_value

_MODULE = "penstock_job"


def load_pipeline(place: str, settings: Sequence[str] = ()) -> Pipeline:
    """Return the pipeline that `FILE[:name]` names; `settings` are `key=value`."""
    file, _, name = place.partition(":")
    module = _load(Path(file))
    found = _find(module, file, name or None)
    values = _read_settings(settings)
    if isinstance(found, Pipeline):
        if values:
            raise _refused(
                f"--set is for a function that returns a pipeline, and {place!r} names a "
                "pipeline: make it a function with keyword arguments"
            )
        return found
    made = _call(found, _to_arguments(found, values), place)
    if not isinstance(made, Pipeline):
        raise _refused(
            f"the function {_name_of(found)!r} of {file!r} returned {type(made).__name__}: it "
            "must return a pen.Pipeline"
        )
    return made


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise _refused(
            f"there is no file {str(path)!r}: give the path of a program, such as job.py"
        )
    # A program imports what lies beside it.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise _refused(f"{str(path)!r} is no Python program: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except PenstockError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"the program {str(path)!r} raised {type(error).__name__} while it was loaded: "
            f"{error}",
            path=str(path),
        ) from error
    send_by_value(module)
    return module


def _find(module: ModuleType, file: str, name: str | None) -> Any:
    """Return the pipeline or function that is meant."""
    usable = {
        key: value for key, value in vars(module).items() if _is_usable(value, module)
    }
    if name is not None:
        if name in usable:
            return usable[name]
        raise _refused(
            f"{file!r} has no pipeline or function {name!r}{did_you_mean(name, usable)}"
        )
    pipelines = {k: v for k, v in usable.items() if isinstance(v, Pipeline)}
    told = {k: v for k, v in usable.items() if _returns_pipeline(v)}
    found = pipelines or told
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise _refused(
            f"{file!r} has no pipeline: make one at the top of the file (shop = "
            'pen.Pipeline("shop")), or a function that is annotated with -> pen.Pipeline'
        )
    raise _refused(
        f"{file!r} has several pipelines: say which, as in {file}:{next(iter(found))}; there "
        f"are {', '.join(found)}"
    )


def _is_usable(value: object, module: ModuleType) -> bool:
    is_own = getattr(value, "__module__", None) == module.__name__
    return isinstance(value, Pipeline) or (inspect.isfunction(value) and is_own)


def _returns_pipeline(value: object) -> bool:
    if not inspect.isfunction(value):
        return False
    told = inspect.get_annotations(value).get("return")
    return told is Pipeline or told in {"pen.Pipeline", "Pipeline", "penstock.Pipeline"}


def _read_settings(settings: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier():
            raise _refused(f"--set {each} is not of the form key=value")
        values[name] = value
    return values


def _to_arguments(
    function: Callable[..., Any], values: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of a function; each text is read as the type of its parameter."""
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    missing = [
        each.name
        for each in parameters.values()
        if each.default is each.empty
        and each.kind not in {each.VAR_KEYWORD, each.VAR_POSITIONAL}
        and each.name not in values
    ]
    unknown = [name for name in values if name not in parameters and not takes_all]
    if missing or unknown:
        said = [f"{name} is missing" for name in missing]
        said += [f"there is no {name}{did_you_mean(name, parameters)}" for name in unknown]
        raise _refused(
            f"the arguments of {_name_of(function)!r} do not fit: {'; '.join(said)}. Give each "
            "as --set key=value"
        )
    hints = typing.get_type_hints(function)
    return {
        name: _convert(name, text, hints.get(name, str)) for name, text in values.items()
    }


def _convert(name: str, text: str, kind: Any) -> Any:
    if kind in {str, Any}:
        return text
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        shown = getattr(kind, "__name__", kind)
        raise _refused(f"--set {name}={text}: it is no {shown} ({error})") from error


def _call(function: Callable[..., Any], arguments: Mapping[str, Any], place: str) -> Any:
    try:
        return function(**arguments)
    except PenstockError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{place!r} raised {type(error).__name__} while the pipeline was made: {error}"
        ) from error


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _refused(message: str) -> UserError:
    return UserError(message, code=ErrorCode.INVALID_CONFIG)
