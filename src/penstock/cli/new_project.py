"""`init`: makes the folder of a new job, which runs at once, on data of its own."""

import re
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.terminal import telling_errors
from penstock.core.ids import JobId
from penstock.errors import ErrorCode, UserError

_JOB = '''\
"""{name}: how much each user has spent, kept up to date sale by sale.

    penstock run job.py                      run it: it ends with its data, and prints the result
    penstock plan job.py                     what the next start would do to its state
    penstock state show {name} spent -e 1    what it had counted when epoch 1 was over
"""

import penstock as pen

SALES = [
    {{"user": "ada", "paid": 7}},
    {{"user": "bob", "paid": 3}},
    {{"user": "ada", "paid": 5}},
    {{"user": "eve", "paid": 2}},
    {{"user": "bob", "paid": 4}},
]


def job(sales: list[dict[str, object]] | None = None) -> pen.Pipeline:
    """Return the pipeline; tests give it sales of their own."""
    pipeline = pen.Pipeline("{name}")
    read = pipeline.read("sales", pen.list_source(SALES if sales is None else sales))
    spent = read.key_by("user").aggregate("spent", total=pen.sum("paid"))
    spent.write("out", pen.stdout())
    return pipeline
'''
_TEST = '''\
"""The job counts what each user has spent."""

import penstock as pen
from job import job


def test_each_user_has_spent_the_sum_of_their_sales(capfd) -> None:
    sales = [{{"user": "ada", "paid": 1}}, {{"user": "ada", "paid": 2}}]
    status = job(sales).run_in_process("memory:")
    assert status.phase is pen.JobPhase.FINISHED
    assert '"total": 3' in capfd.readouterr().out
'''
_README = """\
# {name}

```bash
penstock run job.py    # it ends with its data, and prints the result
penstock status {name}
penstock state show {name} spent -e 1
python -m pytest
```

`penstock.toml` says where the checkpoints are. Started again, the job goes on from its last epoch; one that has
finished changes nothing. Change `job.py`, and ask `penstock plan job.py` what that does to the state.
"""
_TOML = """\
# Where jobs keep their checkpoints: a folder, s3://…, gs://… or az://…
checkpoint = "checkpoints"
"""
_IGNORED = "checkpoints/\n__pycache__/\n"
_PYTEST = "[pytest]\npythonpath = .\n"
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def init(
    name: Annotated[str, typer.Argument(help="The name of the job, and of its folder.")],
) -> None:
    """Make a folder with a job that runs at once, its tests and a README.

    Example: penstock init shop
    """
    with telling_errors():
        folder = Path(name)
        if _NAME.fullmatch(folder.name) is None:
            raise UserError(
                f"{folder.name!r} cannot be the name of a job: use small letters, digits and "
                "'-', a letter first",
                code=ErrorCode.INVALID_NAME,
            )
        job = str(JobId(folder.name))
        if folder.exists():
            raise UserError(
                f"there is a {str(folder)!r} already: choose another name, or another folder",
                code=ErrorCode.INVALID_CONFIG,
            )
        (folder / "tests").mkdir(parents=True)
        files = {
            "job.py": _JOB,
            "tests/test_job.py": _TEST,
            "README.md": _README,
            "penstock.toml": _TOML,
            "pytest.ini": _PYTEST,
            ".gitignore": _IGNORED,
        }
        for path, text in files.items():
            filled = text.format(name=job) if path.endswith((".py", ".md")) else text
            (folder / path).write_text(filled, encoding="utf-8")
        typer.echo(f"made {folder}/: cd {folder} && penstock run job.py")
