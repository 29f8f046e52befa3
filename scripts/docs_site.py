"""Hooks of MkDocs: pages made from other files, links that leave the docs folder, examples.

    index.md          README.md
    changelog.md      CHANGELOG.md
    contributing.md   AGENTS.md
    reference/*.md    the public names of the public packages, from their stubs

A link of a page to a file of the checkout leads to that file's page. A file without a page,
such as a module, is named without a link. A link to a file that does not exist ends the build.
Examples of docstrings, which begin with `>>>`, are shown as code.
"""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "AGENTS.md": "contributing.md",
}
"""Files outside of the docs folder that have a page, by path in the checkout."""
PACKAGES = {
    "penstock": "What the author of a pipeline needs: `import penstock as pen`.",
    "penstock.operators": "What authors of operators, sources and sinks need.",
    "penstock.testing": "What tests of pipelines and operators need.",
    "penstock.errors": "All errors, by what is to be done about them.",
}
SECTIONS = {
    "api": "Pipelines and streams",
    "connectors": "Sources and sinks",
    "operators.aggregates": "Aggregates",
    "operators.udfs": "User-defined functions",
    "operators": "Operators and sources",
    "runtime": "Jobs",
    "state": "State",
    "inspect": "State",
    "console": "Programs",
    "graph": "Outputs of steps",
    "core": "Schemas, time and signals",
    "errors": "Errors",
    "testing": "Test kit",
}
"""What the modules below each package are about, the most special first."""
_LINK = r"\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)"
_CODE = r"^```.*?^```|`[^`\n]+`"
_LINK_OR_CODE = re.compile(f"{_LINK}|{_CODE}", re.DOTALL | re.MULTILINE)
"""Whichever comes first: a link's text may have code in it, and code what looks like a link."""
_EXAMPLE = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for package, about in PACKAGES.items():
        name = f"reference/{package.rpartition('.')[2]}.md"
        text = "\n".join(describe_package(package, about))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links of a page lead to pages; code is left as it is."""
    shown = page.file.src_uri
    source = next((path for path, made in PAGES.items() if made == shown), f"docs/{shown}")

    def replace(link: re.Match[str]) -> str:
        target = link["target"]
        if target is None or "://" in target or target.startswith("mailto:"):
            return link[0]
        path = os.path.normpath(Path(source).parent / target)
        if path in PAGES or path.startswith("docs/"):
            meant = PAGES.get(path, path.removeprefix("docs/"))
            relative = os.path.relpath(meant, Path(shown).parent)
            return f"[{link['text']}]({relative}{link['anchor'] or ''})"
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {target}, which does not exist")
        return f"{link['text']} (`{path}`)"

    return _LINK_OR_CODE.sub(replace, markdown)


def on_page_content(html: str, page: Page, **_: Any) -> None:
    """End the build if an example is shown as a quotation of a quotation of a quotation."""
    if re.search(r"(<blockquote>\s*){3}", html):
        raise PluginError(f"{page.file.src_uri} has an example that is not shown as code")


def describe_package(package: str, about: str) -> Iterator[str]:
    """Yield the lines of a page of reference: its names by section, sorted.

    What the page of another package has already is named with a link to it.
    """
    yield from (f"# {package}", "", about, "")
    elsewhere = names_of("penstock") if package != "penstock" else {}
    sections: dict[str, list[str]] = {}
    also: list[str] = []
    for name, home in sorted(names_of(package).items(), key=lambda item: item[0].lower()):
        if elsewhere.get(name) == home:
            also.append(f"[`{name}`][{home}.{name}]")
            continue
        place = home.removeprefix("penstock.") + "."
        title = next(t for start, t in SECTIONS.items() if place.startswith(f"{start}."))
        sections.setdefault(title, []).append(f"{home}.{name}")
    if also:
        yield from (f"It also has {', '.join(also)}.", "")
    for title in dict.fromkeys(SECTIONS.values()):
        if title in sections:
            yield from (f"## {title}", "")
            for path in sections[title]:
                yield f"::: {path}"
                if path == "penstock.errors.ErrorCode":  # codes speak for themselves
                    yield from ("    options:", "      show_if_no_docstring: true")
                yield ""


def names_of(package: str) -> dict[str, str]:
    """Return the public names of a package and the module of each: its stub's, else its own."""
    place = ROOT / "src" / Path(*package.split("."))
    stub = place / "__init__.pyi"
    homes: dict[str, str] = {}
    if not stub.exists():
        for line in ast.parse(place.with_suffix(".py").read_text(encoding="utf-8")).body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
                homes.update(dict.fromkeys(ast.literal_eval(line.value), package))
        return homes
    for line in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - line.level + 1]
            home = ".".join([*above, line.module or ""])
            homes.update((alias.name, home) for alias in line.names)
    return homes


class Examples(Extension):  # type: ignore[misc]  # griffe is not there when types are checked
    """Marks examples in docstrings as code, which Markdown takes for quotations of quotations."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Put the examples of an object's docstring into fences."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(docstring: str) -> str:
    """Return a docstring with fences around its examples: from `>>>` to the next blank line."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", docstring)
