"""The reference: a page for each kind of public name, made of docstrings."""

from __future__ import annotations

from docs.site.public_names import FOLDERS, KINDS, Kind, inherits_from_private_classes, members

FOLDER = "reference"


def reference_pages() -> dict[str, str]:
    """Return the page of each kind of names and of each module, by its place in the site."""
    kinds = {f"{FOLDER}/{kind.page}.md": kind_page(kind) for kind in KINDS}
    modules = {f"{FOLDER}/{name}.md": module_page(name) for name in FOLDERS}
    return {f"{FOLDER}/README.md": first_page(), **kinds, **modules}


def kind_page(kind: Kind) -> str:
    """Return the page of one kind of names."""
    entries = "\n\n".join(entry("stratagem", name) for name in kind.names)
    return f"# {kind.title}\n\n{kind.what}\n\n{entries}\n"


def module_page(name: str) -> str:
    """Return the page of a module: what it says of itself, and each of its public names."""
    module = f"stratagem.{name}" if name != "stratagem_deploy" else name
    entries = "\n\n".join(entry(module, member) for member in members(module))
    options = "    options:\n      members: false\n      show_root_heading: false"
    return f"# {module}\n\n::: {module}\n{options}\n\n{entries}\n"


def first_page() -> str:
    """Return the page that leads to the others."""
    kinds = [f"- [{kind.title}]({kind.page}.md): {kind.what}" for kind in KINDS]
    modules = [f"- [{name}]({name}.md)" for name in FOLDERS]
    return "\n".join(
        [
            "# Reference",
            "",
            "Every public name of `import stratagem`, with its docstring. "
            "`help(stratagem.X)` prints the same.",
            "",
            *kinds,
            "",
            "Modules:",
            "",
            *modules,
            "",
        ]
    )


def entry(module: str, name: str) -> str:
    """Return what is replaced by the documentation of a public name of a module."""
    if not inherits_from_private_classes(module, name):
        return f"::: {module}.{name}"
    return f"::: {module}.{name}\n    options:\n      inherited_members: true"
