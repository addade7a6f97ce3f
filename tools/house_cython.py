"""Read Cython files by logical lines: strings and comments taken out, what stands in brackets joined."""

import re
from dataclasses import dataclass

from house_modules import Class, Reader, is_private

__all__ = ["CythonReader"]

LITERAL = re.compile(
    r'"""(?:\\.|(?!""").)*"""|' r"'''(?:\\.|(?!''').)*'''|" r'"(?:\\.|[^"\\\n])*"|' r"'(?:\\.|[^'\\\n])*'|" r"#[^\n]*",
    re.DOTALL,
)
FUNCTION = re.compile(r"(?:def|cdef|cpdef)\b[^=(]*?(\w+) *\(")
OPEN, CLOSE = "([{\0", ")]}\1"


@dataclass(frozen=True)
class Line:
    """A logical line of Cython."""

    first: int
    last: int
    indent: int
    text: str  # strings are "", comments are gone


def logical_lines(text: str) -> list[Line]:
    def blank(match: re.Match[str]) -> str:
        literal = match.group()
        return "" if literal.startswith("#") else "\0" + "\n" * literal.count("\n") + "\1"

    lines: list[Line] = []
    parts: list[str] = []
    depth = first = 0
    for number, line in enumerate(LITERAL.sub(blank, text).split("\n"), 1):
        if not parts:
            first = number
        parts.append(line)
        depth += sum((char in OPEN) - (char in CLOSE) for char in line)
        if depth > 0 or line.endswith("\\"):
            continue
        whole = " ".join(parts)
        if whole.strip():
            indent = len(whole) - len(whole.lstrip())
            lines.append(Line(first, number, indent, re.sub("\0 *\1", '""', whole).strip()))
        parts, depth = [], 0
    return lines


class CythonReader(Reader):
    """Read a ``.pyx`` or ``.pxd`` file."""

    def read(self, text: str) -> None:
        lines = logical_lines(text)
        for line in lines:
            self.read_import(line)
        self.read_block(lines, "")
        own = [name for found in self.module.classes.values() for name in found.names | found.fields]
        own += [place.what for place, _ in self.module.functions]
        own += [match.group(1) for line in lines if (match := re.match(r"(?:cdef .*?)?\b(\w+) *=", line.text))]
        self.module.own |= {name for name in own if is_private(name)}
        self.read_uses(lines)
        for match in re.finditer(r"\b(?:has|get|set|del)attr\(([\w.]+), ['\"](_\w+)['\"]", text):
            self.use(text.count("\n", 0, match.start()) + 1, *match.groups())

    def read_uses(self, lines: list[Line]) -> None:
        types: dict[str, str] = {}  # variable -> class that it is declared with, in the function being read
        for line in lines:
            if FUNCTION.match(line.text):
                types = {}
            if re.match(r"def|cdef|cpdef", line.text):
                types |= {variable: kind for kind, variable in re.findall(r"(\w+) +(\w+)(?= *[,)=]| *$)", line.text)}
            for owner, name, of_self in re.findall(r"([\w.]+|super\(\))\.(_\w+)(\(self\b)?", line.text):
                is_base = of_self and owner.rpartition(".")[2][:1].isupper()
                self.use(line.first, "super()" if is_base else owner, name, types.get(owner, ""))

    def read_import(self, line: Line) -> None:
        if match := re.match(r"from +([\w.]+) +c?import +(.*)", line.text):
            names = [part.split() for part in match.group(2).strip("() ").split(",") if part.strip()]
            self.import_names(match.group(1), [(part[0], part[-1]) for part in names], line.first)
        elif match := re.match(r"c?import +([\w., ]+)", line.text):
            for part in match.group(1).split(","):
                name, *local = part.replace(" as ", " ").split()
                self.add_import(name, line.first)
                self.module.bound[local[0] if local else name.partition(".")[0]] = name

    def read_block(self, lines: list[Line], outer: str) -> None:
        """The lines of a file or of a class; what is indented deeper belongs to the line before."""
        position = 0
        while position < len(lines):
            line = lines[position]
            end = position + 1
            while end < len(lines) and lines[end].indent > line.indent:
                end += 1
            body = lines[position + 1 : end]
            position = end
            if match := re.match(r"(?:cdef +|cpdef +)?class +(\w+) *(?:\((.*)\))? *:", line.text):
                self.read_class(match.group(1), match.group(2) or "", line, body)
            elif line.text.endswith(":") and (match := FUNCTION.match(line.text)):
                docstring = body[0].last - body[0].first + 1 if body and body[0].text == '""' else 0
                last = body[-1].last if body else line.last
                place = self.place(line.first, outer + match.group(1))
                self.module.functions.append((place, last - line.first + 1 - docstring))
            elif re.match(r"(if|else|elif|try|except)\b.*:$", line.text):
                self.read_block(body, outer)

    def read_class(self, name: str, bases: str, line: Line, body: list[Line]) -> None:
        found = self.module.classes.setdefault(name, Class(f"{self.path}:{line.first}"))
        found.where = f"{self.path}:{line.first}"
        found.bases = found.bases or [base.strip() for base in bases.split(",") if base.strip()]
        level = min((inner.indent for inner in body), default=0)
        for inner in body:
            found.fields |= set(re.findall(r"\bself\.(\w+)(?: *,[^=]*)? *[-+*/|&]?=(?!=)", inner.text))
            if inner.indent != level:
                continue
            if match := FUNCTION.match(inner.text):
                found.names.add(match.group(1))
            elif match := re.match(r"cdef +(?:public +|readonly +)?(.*)", inner.text):
                declared = re.sub(r"\[[^\]]*\]", "", match.group(1)).split(",")
                found.fields |= {part.split()[-1].lstrip("*&") for part in declared if part.strip()}
            elif match := re.match(r"(\w+) *=", inner.text):
                found.names.add(match.group(1))
        found.fields -= found.names
        self.read_block(body, f"{name}.")
