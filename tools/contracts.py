"""A contract for import-linter that it does not bring itself: what is private stays in its package.

pyproject.toml lists the contracts; `make lint` runs them.
"""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, output

__all__ = ["PrivateContract"]


def _is_private(module: str) -> bool:
    return any(part.startswith("_") and part != "__main__" for part in module.split(".")[1:])


class PrivateContract(Contract):
    """No package imports a module of another package whose name begins with an underscore."""

    type_name = "private"

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        found = [
            f"{importer}:{each['line_number']}: {each['line_contents']}"
            for imported in sorted(graph.modules)
            if _is_private(imported)
            for importer in sorted(graph.find_modules_that_directly_import(imported))
            if importer.split(".")[0] != imported.split(".")[0]
            for each in graph.get_import_details(importer=importer, imported=imported)
        ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["found"]:
            output.print_error(line)
