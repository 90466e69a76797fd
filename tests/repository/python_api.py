"""Prints the public names of the Python package, one a line, with their signatures.

It reads the source and imports nothing, so that it needs no package of others. Public is what is in
__all__ of a module without an underscore, and what such a class has without an underscore, its own
or from a base class of the package.

    python_api.py sdk/python/src
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A module of the package: its definitions, and what it imports from other modules of it."""

    def __init__(self, path: Path) -> None:
        self.exported: list[str] = []
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.values: dict[str, str] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ImportFrom) and node.level == 1:
                for name in node.names:
                    self.imported[name.asname or name.name] = (node.module or "", name.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.values[node.target.id] = ast.unparse(node.annotation)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if node.targets[0].id == "__all__":
                    self.exported = list(ast.literal_eval(node.value))
                else:
                    self.values[node.targets[0].id] = ""


class Package:
    def __init__(self, root: Path) -> None:
        self.modules = {path.stem: Module(path) for path in root.glob("*.py")}

    def find(self, module: str, name: str) -> tuple[Module, str, str]:
        """The module that defines a name, its own name, and the name there."""
        m = self.modules[module]
        while name in m.imported and m.imported[name][0]:
            module, name = m.imported[name]
            m = self.modules[module]
        return m, module, name

    def names(self) -> Iterator[str]:
        for module, m in sorted(self.modules.items()):
            if module.startswith("_") and module != "__init__":
                continue
            prefix = "locksidecar" if module == "__init__" else f"locksidecar.{module}"
            for name in m.exported:
                yield from self.describe(f"{prefix}.{name}", module, name)

    def describe(self, shown: str, module: str, name: str) -> Iterator[str]:
        m, where, name = self.find(module, name)
        if name in m.classes:
            bases = [ast.unparse(base).split(".")[-1] for base in m.classes[name].bases if not is_private(base)]
            yield f"{shown} class({', '.join(bases)})"
            for member, text in sorted(self.members(where, name).items()):
                yield f"{shown}.{member} {text}"
        elif name in m.functions:
            yield f"{shown} {described(m.functions[name])}"
        elif name in self.modules:
            yield f"{shown} module"
        elif name in m.values:
            yield f"{shown} value {m.values[name]}".rstrip()
        else:
            raise SystemExit(f"{shown} is in __all__ and is not defined")

    def members(self, module: str, name: str) -> dict[str, str]:
        m, module, name = self.find(module, name)
        node, found = m.classes.get(name), dict[str, str]()
        if node is None:
            return found  # not of this package
        for base in reversed(node.bases):
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name) and base.value.id in self.modules:
                found |= self.members(base.value.id, base.attr)
            elif isinstance(base, ast.Name) and (base.id in m.classes or base.id in m.imported):
                found |= self.members(module, base.id)
        functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.setdefault(child.name, []).append(child)
                if child.name == "__init__":
                    found = attributes(child) | found
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                found[child.target.id] = f"field {ast.unparse(child.annotation)}"
        if self.is_made_here(functions.get("__init__", [])):
            del functions["__init__"]
        found |= {name: described(overloads) for name, overloads in functions.items()}
        return {name: text for name, text in found.items() if is_public(name)}

    def is_made_here(self, constructors: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> bool:
        """Whether only the package calls a constructor: it takes a class that is not public."""
        public = {name for m in self.modules.values() for name in m.exported}
        private = {name for m in self.modules.values() for name in m.classes} - public
        words = {n.id for f in constructors for n in ast.walk(f.args) if isinstance(n, ast.Name)}
        return bool(words & private)


def attributes(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """The public attributes that a constructor sets."""
    found: dict[str, str] = {}
    for node in ast.walk(constructor):
        target: ast.expr | None = None
        kind = ""
        if isinstance(node, ast.AnnAssign):
            target, kind = node.target, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            found[target.attr] = f"attribute {kind}".rstrip()
    return found


def is_private(base: ast.expr) -> bool:
    return ast.unparse(base).startswith("_")


def is_public(name: str) -> bool:
    kept = ("__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__")
    return not name.startswith("_") or name in kept


def described(overloads: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> str:
    """The signature of a function; of an overloaded one, those of the overloads."""
    typed = [f for f in overloads if "overload" in decorators(f)]
    return " | ".join(signature(f) for f in typed or overloads[:1])


def signature(f: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = f" -> {ast.unparse(f.returns)}" if f.returns else ""
    of = decorators(f)
    if "property" in of or "cached_property" in of:
        return f"property{returns}"
    kind = "async def" if isinstance(f, ast.AsyncFunctionDef) else "def"
    for decorator in ("classmethod", "staticmethod", "contextmanager", "asynccontextmanager"):
        kind = f"@{decorator} {kind}" if decorator in of else kind
    return f"{kind}({ast.unparse(f.args)}){returns}"


def decorators(f: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(d).split(".")[-1] for d in f.decorator_list}


if __name__ == "__main__":
    print("\n".join(Package(Path(sys.argv[1]) / "locksidecar").names()))
