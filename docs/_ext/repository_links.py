"""Links to files that are no pages of the site lead to the repository, or to the copy of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("repository", "", "env")
    app.add_config_value("copies", {}, "env")
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True}


class RepositoryLinks(SphinxTransform):
    """Runs before files are collected for download."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        for node in [*self.document.findall(is_link)]:
            found = self.file_of(node)
            if found is not None:
                self.replace(node, found)

    def file_of(self, node: Any) -> Path | None:
        """Return the file that a link means if it is no page of the site."""
        target = unquote(node["reftarget"].partition("#")[0])
        if node.get("refdomain") == "doc":  # a Markdown file, by its name without the suffix
            if target in self.env.found_docs:
                return None
            target = f"/{target}.md"
        found = Path(target) if target.startswith(f"{self.root}/") else folder_of(node) / target
        found = found.resolve()
        inside = self.root in (found, *found.parents)
        return found if target and inside and found.exists() else None

    @property
    def root(self) -> Path:
        return Path(self.env.srcdir).resolve().parent

    def replace(self, node: Any, file: Path) -> None:
        copy = self.config.copies.get(str(file.relative_to(self.root)))
        if copy is not None:  # a page of the site has its text
            node.replace_self(page_link(node, copy, self.env.docname))
            return
        kind = "tree" if file.is_dir() else "blob"
        url = f"{self.config.repository}/{kind}/main/{file.relative_to(self.root)}"
        anchor = node.get("reftargetid") or node["reftarget"].partition("#")[2]
        url += f"#{anchor}" if anchor else ""
        node.replace_self(nodes.reference("", "", *node.children, refuri=url, internal=False))


def page_link(node: Any, page: str, from_page: str) -> nodes.Node:
    how = {"refdoc": from_page, "reftype": "myst", "refexplicit": True, "reftargetid": None}
    return addnodes.pending_xref("", *node.children, refdomain="doc", reftarget=page, **how)


def is_link(node: nodes.Node) -> bool:
    return isinstance(node, addnodes.download_reference) or (
        isinstance(node, addnodes.pending_xref) and node.get("reftype") == "myst"
    )


def folder_of(node: Any) -> Path:
    """Return the folder of the text that a link stands in; it may be included from elsewhere."""
    while node.source is None:
        node = node.parent
    return Path(node.source).parent
