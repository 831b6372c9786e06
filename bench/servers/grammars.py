"""200 grammars and schemas that were made to take the time, the memory or the stack of whoever compiles them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COUNT = 200
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hurtful:
    """One grammar as a field of a request, `mxspec.lark`, `mxspec.regex` or a chat's schema, and its family."""

    family: str
    kind: str  # json_schema, regex or lark
    value: Any

    def body(self, tokens: int) -> bytes:
        """A chat that asks for it."""
        messages = [{"role": "user", "content": "Say it."}]
        body: Schema = {"messages": messages, "max_tokens": tokens, "temperature": 0}
        if self.kind == "json_schema":
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "it", "schema": self.value}}
        else:
            body["mxspec"] = {self.kind: self.value}
        return json.dumps(body).encode()


def hurtful_grammars() -> list[Hurtful]:
    """All of them, families side by side, so that each is sent at all times of an attack."""
    families = [list(family) for family in _families()]
    longest = max(map(len, families))
    found = [family[place] for place in range(longest) for family in families if place < len(family)]
    assert len(found) == COUNT
    return found


def _families() -> Iterator[Iterator[Hurtful]]:
    yield _named("chains of $ref", "json_schema", _chains())
    yield _named("cycles of $ref", "json_schema", _cycles())
    yield _named("unions", "json_schema", _unions())
    yield _named("intersections", "json_schema", _intersections())
    yield _named("nesting", "json_schema", _nested())
    yield _named("counts", "json_schema", _counts())
    yield _named("numbers", "json_schema", _numbers())
    yield _named("texts to choose from", "json_schema", _choices())
    yield _named("pattern", "json_schema", ({"type": "string", "pattern": text} for text in _patterns()))
    yield _named("regex", "regex", _expressions())
    yield _named("lark", "lark", _lark())


def _named(family: str, kind: str, values: Iterator[Any]) -> Iterator[Hurtful]:
    return (Hurtful(family, kind, value) for value in values)


def _to(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _record(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _chains() -> Iterator[Schema]:
    for count in (40, 90, 140, 200, 400, 800, 1500, 2500, 4000, 6000):
        plain = {f"a{i}": _to(f"a{i + 1}") for i in range(count)}
        through = {f"a{i}": _record({"x": _to(f"a{i + 1}")}) for i in range(count)}
        for links in (plain, through):
            yield {**_to("a0"), "$defs": {**links, f"a{count}": {"type": "string"}}}


def _cycles() -> Iterator[Schema]:
    for count in (1, 2, 10, 50, 200):
        ring = {f"a{i}": _to(f"a{(i + 1) % count}") for i in range(count)}
        tree = {f"a{i}": {"anyOf": [_record({"x": _to(f"a{j}")}) for j in range(min(count, 20))]} for i in range(count)}
        yield {**_to("a0"), "$defs": ring}
        yield {**_to("a0"), "$defs": tree}


def _unions() -> Iterator[Schema]:
    for count in (20, 100, 500, 2000, 6000):
        yield {"anyOf": [{"const": {"kind": f"kind {i}"}} for i in range(count)]}
        yield {"anyOf": [_record({f"name{i}": {"type": "integer"}}) for i in range(count)]}
        yield {"oneOf": [{"type": "string", "pattern": f"^[a-z]{{1,{i + 1}}}x{i}$"} for i in range(count)]}
        yield {"type": "array", "items": {"anyOf": [{"type": "string", "minLength": i} for i in range(count)]}}


def _intersections() -> Iterator[Schema]:
    for count in (5, 20, 80, 300, 1000):
        yield {"allOf": [{"type": "string", "pattern": f"^.{{{i}}}a.*$"} for i in range(count)]}
        yield {"allOf": [{"anyOf": [_record({f"a{i}": {}}), _record({f"b{i}": {}})]} for i in range(count)]}
        yield {"type": "object", "patternProperties": {f"^a*{i}b*.*$": {"type": "integer"} for i in range(count)}}
        yield {"allOf": [{"type": "integer", "multipleOf": 2 * i + 3} for i in range(count)]}


def _nested() -> Iterator[Schema]:
    for depth in (20, 30, 40, 45):
        lists: Schema = {"type": "string"}
        records: Schema = {"type": "string"}
        either: Schema = {"type": "string"}
        for i in range(depth):
            lists = {"type": "array", "items": lists, "minItems": 3}
            records = _record({f"a{i}": records})
            either = {"anyOf": [{"type": "array", "items": either}, {"type": "null"}]} if i % 2 else either
        yield lists
        yield records
        yield either


def _counts() -> Iterator[Schema]:
    for count in (100, 2000, 50_000, 1_000_000, 2_000_000_000):
        yield {"type": "string", "minLength": count, "maxLength": 2 * count}
        yield {"type": "array", "items": {"type": "integer"}, "minItems": count, "maxItems": count + 1}
        yield {"type": "array", "items": {"type": "array", "maxItems": count}, "maxItems": count}
        yield {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": count}


def _numbers() -> Iterator[Schema]:
    for of in (7, 997, 65537, 999983, 2**61 - 1):
        yield {"type": "integer", "multipleOf": of}
    for digits in (5, 20, 60, 200, 300):
        yield {"type": "integer", "minimum": 10**digits - 7, "maximum": 7 * 10**digits + 3}
    for step in (0.001, 1e-9, 1e-300):
        yield {"type": "number", "multipleOf": step, "minimum": 1 / 3, "maximum": 1e9 / 7}


def _choices() -> Iterator[Schema]:
    for count in (500, 5000, 20_000):
        yield {"enum": [f"text {i * 7919 % count}" for i in range(count)]}
        yield {"enum": [i * 7919 for i in range(count)]}
        yield _record({f"field {i}": {"enum": ["a", "b"]} for i in range(count // 10)})
    yield {"enum": ["x" * 100_000, "x" * 99_999 + "y"]}


def _patterns() -> Iterator[str]:
    yield from (r"^(a+)+$", r"^(a|a)*b$", r"^(a|aa)+$", r"^(.*a){20}$", r"^(.*a.*b){9}$", r"^(x+x+)+y$")
    yield from (r"^\p{L}{1,1000}$", r"^(\p{L}|\p{N}){500}$", r"^[^a]{1,5000}$", r"^(?:\w+\s?)*$", r"^(\w{1,50}\.){50}$")
    yield from (r"^(?=a)(?=.*b).*$", r"^(a)\1$", r"^(?!x).*$", r"(", r"[z-a]", r"a{3,1}", r"\Z\A", r"^\p{Nothing}$")
    for count in (100, 10_000, 1_000_000):
        yield f"^a{{{count}}}$"
        yield f"^(a{{1,{count}}}b?){{1,{count}}}$"
        yield f"^.*a.{{{count}}}$"
    yield "^(" + "|".join(f"w{i}.*{i}" for i in range(3000)) + ")$"
    yield "^" + "(" * 3000 + "a" + ")" * 3000 + "$"


def _expressions() -> Iterator[str]:
    for count in (12, 30, 200):
        yield f"(a|b)*a(a|b){{{count}}}"
        yield f"(a?){{{count}}}a{{{count}}}"
        yield f"(.*,){{{count}}}x"
        yield "".join(f"(x{i}|y)*" for i in range(count))
    yield "(((a{1,100}){1,100}){1,100}){1,100}"
    yield r"(\p{L}{1,200}\s){200}"
    yield "|".join("a" * i + "b" for i in range(1000))
    yield "[" + "".join(chr(0x400 + 2 * i) for i in range(2000)) + "]{500}"


def _lark() -> Iterator[str]:
    for count in (50, 500, 5000):
        rules = "\n".join(f'r{i}: r{i + 1} "x"' for i in range(count))
        yield f'start: r0\n{rules}\nr{count}: "a"'
        yield "start: " + " | ".join(f'"w{i}" start' for i in range(count)) + ' | "z"'
        yield "start: " + "(" * count + '"a"' + ")" * count
        yield "start: " + " ".join(["a?"] * count) + '\na: "a"'
        yield f"start: T{{{count}}}\nT: /[a-z]{{1,{count}}}/"
    yield 'start: start start | "a"'
    yield 'start: "a" start "b" | start start'
    yield 'start: start start start | "a" | ""'
    yield 'start: a\na: b\nb: a | "x"'
    yield 'start: a*\na: b*\nb: "x"*'
    yield "start: /(a+)+/ & /(b|a)*/ & ~/a*/"
    yield "start: ~(/(.*a){12}/)"
    yield 'start: "a"{1000000}'
    yield 'start: ("a" | "b"){1,100000} start'
    yield "start: " + "T " * 2000 + "\nT: /.*/"
    yield "%ignore /(x|y)*z/\nstart: A*\nA: /(x|xx)+/"
    yield 'start: "' + "x" * 200_000 + '"'
    yield "start: T\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(40)) + '\nT40: "a"\nT: T0'
    yield "start: [" * 60 + '"a"' + "]" * 60
