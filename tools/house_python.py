"""Read Python files and stubs with ``ast``: imports, private uses, classes, functions, signatures."""

import ast
import re
from collections.abc import Iterator

from house_modules import Class, Reader, is_private

__all__ = ["PythonReader"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


class PythonReader(Reader):
    """Read a ``.py`` or ``.pyi`` file."""

    def read(self, tree: ast.Module, *, stub: bool) -> None:
        self.strings = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for node in ast.walk(tree):
            self.read_import(node)
        self.module.aliases |= type_aliases(tree)
        self.read_body(tree.body, "", stub=stub)
        if not stub:
            self.module.own |= defined_private(tree)
            self.read_uses(tree, {})

    def read_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.add_import(alias.name, node.lineno)
                local = alias.asname or alias.name.partition(".")[0]
                self.module.bound[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parts = self.module.name.split(".")
                parts = parts[: len(parts) - node.level + self.module.is_package]
                source = ".".join([*parts, source]).rstrip(".")
            names = [(alias.name, alias.asname or alias.name) for alias in node.names]
            self.import_names(source, names, node.lineno)
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__") and node.args:
                self.import_computed(node.args[0])
            for keyword in node.keywords:
                if keyword.arg == "package" and isinstance(keyword.value, ast.Constant):
                    self.import_listed(str(keyword.value.value) + ".", node.lineno)

    def import_computed(self, name: ast.expr) -> None:
        """``import_module`` of a constant, or of an f-string whose beginning is known."""
        if isinstance(name, ast.Constant):
            self.add_import(str(name.value), name.lineno)
        elif isinstance(name, ast.JoinedStr):
            prefix = ""
            for part in name.values:
                if isinstance(part, ast.Constant):
                    prefix += str(part.value)
                elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "__name__":
                    prefix += self.module.name
                else:
                    break
            self.import_listed(prefix, name.lineno)

    def import_listed(self, prefix: str, line: int) -> None:
        """The modules behind ``prefix`` whose names stand in this file as strings."""
        for target in sorted(self.known):
            if prefix and target.startswith(prefix) and target.removeprefix(prefix) in self.strings:
                self.add_import(target, line)

    def read_uses(self, node: ast.AST, types: dict[str, str]) -> None:
        """Private names that are asked for; ``types`` are the annotations of the parameters in sight."""
        if isinstance(node, Function):
            types = types | {
                arg.arg: annotated_class(arg.annotation) for arg in ast.walk(node.args) if isinstance(arg, ast.arg)
            }
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            self.use(node.lineno, owner, node.attr, types.get(owner, ""))
        elif isinstance(node, ast.Call):
            written = [ast.unparse(argument) for argument in node.args]
            if isinstance(node.func, ast.Attribute) and written[:1] == ["self"] and is_class(node.func.value):
                self.use(node.lineno, "super()", node.func.attr)
                children.remove(node.func)
            elif ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr") and len(written) > 1:
                self.use(node.lineno, written[0], written[1].strip("'"), types.get(written[0], ""))
        for child in children:
            self.read_uses(child, types)

    def read_body(self, body: list[ast.stmt], outer: str, *, stub: bool) -> None:
        """Classes, functions and their signatures, also those inside functions and ``if``."""
        for node in body:
            if isinstance(node, Function):
                name = outer + node.name
                _, names = self.module.signatures.setdefault(name, (self.place(node.lineno, name), set()))
                names |= signature_names(node)  # of all its overloads
                if not stub:
                    self.module.functions.append((self.place(node.lineno, name), function_lines(node)))
                self.read_body(node.body, f"{name}.", stub=stub)
            elif isinstance(node, ast.ClassDef):
                name = outer + node.name
                if not stub:
                    self.module.classes[name] = python_class(node, f"{self.path}:{node.lineno}")
                self.read_body(node.body, f"{name}.", stub=stub)
            else:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.stmt):
                        self.read_body([child], outer, stub=stub)
                    elif isinstance(child, ast.ExceptHandler | ast.match_case):
                        self.read_body(child.body, outer, stub=stub)


def is_class(node: ast.expr) -> bool:
    """Whether an expression is written like the name of a class."""
    return ast.unparse(node).rpartition(".")[2][:1].isupper()


def annotated_class(annotation: ast.expr | None) -> str:
    """The class that an annotation names; of ``X | None`` it is X."""
    if isinstance(annotation, ast.BinOp):
        annotation = annotation.left
    if isinstance(annotation, ast.Constant):
        return str(annotation.value).partition(" ")[0]
    return ast.unparse(annotation) if annotation is not None else ""


def assigned(node: ast.AST) -> Iterator[ast.expr]:
    """What is given a value anywhere below: names, and attributes of whatever."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner


def own_attributes(node: ast.AST) -> set[str]:
    """Attributes of ``self`` or ``cls`` that are assigned below."""
    return {
        target.attr
        for target in assigned(node)
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in ("self", "cls")
    }


def slots(node: ast.stmt) -> set[str]:
    """Names in ``__slots__ = ...``."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
        return {str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return set()


def defined_private(tree: ast.Module) -> set[str]:
    """Private names of functions, classes, variables and attributes that a file defines itself."""
    found = own_attributes(tree) | {target.id for target in assigned(tree) if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= slots(node)
    return {name for name in found if is_private(name)}


def python_class(node: ast.ClassDef, where: str) -> Class:
    found = Class(where, [ast.unparse(base) for base in node.bases])
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            constant = "ClassVar" in ast.unparse(statement.annotation)
            (found.names if constant else found.fields).add(statement.target.id)
        elif isinstance(statement, Function | ast.ClassDef):
            found.names.add(statement.name)
            if isinstance(statement, Function):
                found.fields |= own_attributes(statement)
        elif slots(statement):
            found.fields |= slots(statement)
        else:
            found.names |= {target.id for target in assigned(statement) if isinstance(target, ast.Name)}
            found.names |= {inner.name for inner in ast.walk(statement) if isinstance(inner, Function)}
    found.fields -= found.names  # self.x = ... of a property, or of a class attribute
    return found


def function_lines(node: Function) -> int:
    """Lines from ``def`` to the end, its docstring left out."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def type_aliases(tree: ast.Module) -> dict[str, set[str]]:
    """Names that the file gives to types, with the names in those types: ``Row = dict[str, Any]``."""
    aliases = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute):
            aliases[target.id] = words(value)
    return aliases


def signature_names(node: Function) -> set[str]:
    """The names in the annotations of a function."""
    annotations = [arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg)]
    return set().union(*(words(part) for part in [*annotations, node.returns] if part is not None))


def words(node: ast.expr) -> set[str]:
    """Names in an expression, also those in strings: annotations may be written as such."""
    return set(re.findall(r"[A-Za-z_]\w*", ast.unparse(node)))
