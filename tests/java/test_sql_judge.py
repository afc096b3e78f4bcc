"""Filters as we compile and match them, judged by Apache RocketMQ's own filter module.

Random expressions, good and broken, meet random properties; one Java process judges all of them,
and every verdict must be ours: illegal or not, then true, false, null or error.
"""

from __future__ import annotations

import os

import pytest

from pystore.errors import ExpressionIllegal
from pystore.native import ffi, lib

pytestmark = [pytest.mark.java]

CASES = int(os.environ.get("PS_SQL_CASES", "6000"))
SAYS = {
    lib.PS_SQL92_TRUE: "true",
    lib.PS_SQL92_FALSE: "false",
    lib.PS_SQL92_NULL: "null",
    lib.PS_SQL92_ERROR: "error",
}

NAMES = ["a", "b", "c", "A", "$x", "_y1", "price", "missing"]
INTEGERS = ["0", "1", "2", "3", "10", "007", "0x1F", "42L", "7l", "0L", "99999999999"]
INTEGERS += ["2147483647", "2147483648", "9223372036854775807", "9223372036854775808"]
REALS = ["1.0", "0.5", ".5", "5.", "5e2", "1E-3", "2.5e+3", "0.0", "1e400", "1e-400", "3.0"]
REALS += ["2147483647.0", "9007199254740993.0", "4.9e-324", "1.7976931348623157e308", "5.e1"]
STRINGS = ["", "x", "it''s", "''", "EU", "true", "TRUE", "3", "1.0", "grün", "\U0001f600", "a b"]
TEXTS = ["x", "xx", "ax", "it's", "'", "EU", "true", "TRUE", "tRue", "false", "grün", "\U0001f600"]
NUMBERS = ["0", "1", "2", "3", "-1", "+3", "3.0", "3.5", " 3", "3 ", "03", "0x10", "1e3", "3f"]
NUMBERS += ["3d", "0x1p3", "-0x1.8P-1f", "NaN", "-NaN", "+Infinity", "-Infinity", "Infinit", "-0.0"]
NUMBERS += ["2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807"]
NUMBERS += ["9223372036854775808", "-9223372036854775808", "1_000", "1,5", "", "+", "-", ".", "e5"]
NUMBERS += ["٣", "-३७", "３", "1e99999999999", "1e-99999999999", "0.1e1", "1e", "1e+", "5L"]
NUMBERS += [
    "9007199254740993",
    "0.1",
    "\t7\r\n",
    "1.7976931348623159e308",
    "2.4703282292062328e-324",
]
NUMBERS += ["0x", "0x1", "0x.p1", "0x1.p1", "0x.8p1", "1e5d", "1e5x", "𝟛", "--1", "2.5e3", "000"]
WORDS = ["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS"]
WORDS += ["STARTSWITH", "ENDSWITH", "LIKE", "ESCAPE"]
MARKS = ["=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-", "*", "/", "!=", "==", "."]
MARKS += ["'", '"', ";", "%", "é", "\x00", "--", "/*", "*/", "\n", "\r", "\f", "\v", "\u212a"]
BLANKS = [" ", " ", " ", "  ", "\t", "\n", "\r\n", "\f", "/**/", "/* a * b **/", "-- c\n", "--\r"]


def cased(rng, word):
    """Keywords have no case."""
    return "".join(rng.choice((c.lower(), c.upper())) for c in word)


def literal(rng):
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(INTEGERS)
    if kind < 5:
        return rng.choice(REALS)
    if kind < 7:
        return "'" + rng.choice(STRINGS) + "'"
    return cased(rng, rng.choice(("TRUE", "FALSE", "NULL")))


def number(rng):
    """A value that has an order, mostly."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(NAMES)
    if kind == 4:
        return "-" + number(rng)
    if kind == 5:
        return "+" + rng.choice(NAMES + INTEGERS)
    if kind == 6:
        return "(" + number(rng) + ")"
    if kind == 7:
        return literal(rng)
    return rng.choice(INTEGERS[:4] + REALS[:3])


def strings(rng):
    return ["'" + rng.choice(STRINGS) + "'" for _ in range(rng.choice((1, 2, 3, 7)))]


def condition(rng, depth):
    """Tokens of a condition that upstream mostly takes."""
    kind = rng.randrange(14) if depth > 0 else rng.randrange(8)
    no = [cased(rng, "NOT")] if rng.randrange(3) == 0 else []
    if kind < 2:
        return [number(rng), rng.choice(("=", "<>")), rng.choice((number, literal))(rng)]
    if kind < 4:
        return [number(rng), rng.choice(("<", "<=", ">", ">=")), number(rng)]
    if kind == 4:
        low, high = number(rng), number(rng)
        return [number(rng), *no, cased(rng, "BETWEEN"), low, cased(rng, "AND"), high]
    if kind == 5:
        listed = [t for s in strings(rng) for t in (",", s)][1:]
        return [rng.choice(NAMES), *no, cased(rng, "IN"), "(", *listed, ")"]
    if kind == 6:
        word = cased(rng, rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")))
        left = rng.choice((rng.choice(NAMES), literal(rng)))
        return [left, *no, word, strings(rng)[0]]
    if kind == 7:
        return [number(rng), cased(rng, "IS"), *no, cased(rng, "NULL")]
    inner = condition(rng, depth - 1)
    if kind == 8:
        return [cased(rng, "NOT"), "(", *inner, ")"]
    if kind == 9:
        return ["(", *inner, ")", rng.choice(("=", "<>")), number(rng)]
    if kind == 10:
        return ["-", "(", *inner, ")", *rng.choice((["IS", "NULL"], ["<", "3"], [">", "a"]))]
    if kind == 11:
        return ["(", *inner, ")"]
    word = cased(rng, rng.choice(("AND", "OR")))
    return [*inner, word, *condition(rng, depth - 1)]


def token(rng):
    """Any token, in any place."""
    pools = (NAMES, INTEGERS, REALS, [f"'{s}'" for s in STRINGS], WORDS, WORDS, MARKS, MARKS)
    return rng.choice(rng.choice(pools))


def expression(rng):
    kind = rng.randrange(10)
    tokens = condition(rng, rng.randrange(4))
    if kind == 0:
        tokens = [token(rng) for _ in range(rng.randrange(8))]
    elif kind < 4:  # a fault or two in a good one
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(tokens) + 1)
            tokens[at : at + rng.randrange(3)] = [token(rng) for _ in range(rng.randrange(3))]
    elif kind == 4:
        tokens = [*tokens, token(rng), token(rng)]
    blank = rng.choice(("", " ", " ", " ", None))
    text = ""
    for one in tokens:
        gap = rng.choice(BLANKS) if blank is None else blank
        words_meet = text and one and (text[-1] + one[0]).isalnum()
        text += (gap or (" " if words_meet and rng.randrange(20) else "")) + one
    return text


def value(rng):
    """A property's value: much of it looks like a number."""
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(TEXTS)
    if kind < 9:
        return rng.choice(NUMBERS)
    if kind == 9:
        return f"{rng.uniform(-10, 10)!r}e{rng.randrange(-330, 330)}"
    if kind == 10:
        return str(rng.randrange(-(1 << rng.randrange(1, 70)), 1 << rng.randrange(1, 70)))
    return "".join(rng.choice("0123456789.eE+-xXpPfFdDLaN \t") for _ in range(rng.randrange(12)))


def properties(rng):
    """Encoded; now and then as only a broken client would."""
    if rng.randrange(10) == 0:
        return "".join(rng.choice("abc3\x01\x01\x02\x02") for _ in range(rng.randrange(60)))
    pairs = [(rng.choice(NAMES), value(rng)) for _ in range(rng.randrange(7))]
    text = "".join(f"{name}\x01{text}\x02" for name, text in pairs)
    return text[:-1] if rng.randrange(8) == 0 else text


def ours(text, encoded):
    """The words the judge would print."""
    error = ffi.new("ps_error *")
    raw = text.encode()
    sql = ffi.gc(lib.ps_sql92_compile(raw, len(raw), error), lib.ps_sql92_free)
    if not sql:
        assert error.code == ExpressionIllegal.code
        return ["illegal"]
    return ["legal"] + [SAYS[lib.ps_sql92_evaluate(sql, one, len(one))] for one in encoded]


def judged(reference, tmp_path, cases):
    """What Java says to (text, list of encoded properties), a list of words each."""
    listed = tmp_path / "cases"
    with listed.open("w") as out:
        for text, encoded in cases:
            out.write("\t".join([text.encode().hex(), *(one.hex() for one in encoded)]) + "\n")
    said = reference.run("sql-judge", listed).stdout.splitlines()
    assert len(said) == len(cases)
    return [line.split(" ") for line in said]


def disagreements(cases, said):
    for (text, encoded), theirs in zip(cases, said, strict=True):
        mine = ours(text, encoded)
        if mine == theirs:
            continue
        if mine[0] == theirs[0]:
            at = next(i for i in range(1, len(mine)) if mine[i] != theirs[i])
            yield f"{text!r} on {encoded[at - 1]!r}: {mine[at]}, Java says {theirs[at]}"
        else:
            yield f"{text!r}: {mine[0]}, Java says {theirs[0]}"


def check_unread(reference, tmp_path, cases, said):
    """What we say upstream does not read makes no difference to it."""
    cut, expected = [], []
    for (text, encoded), theirs in zip(cases, said, strict=True):
        raw = text.encode()
        sql = ffi.gc(lib.ps_sql92_compile(raw, len(raw), ffi.NULL), lib.ps_sql92_free)
        if sql and (unread := lib.ps_sql92_unread(sql)) >= 0:
            cut.append((raw[:unread].decode(), encoded))
            expected.append(theirs)
    assert len(cut) > CASES // 50
    assert judged(reference, tmp_path, cut) == expected


def test_random_filters_agree_with_java(reference, tmp_path, rng):
    cases = []
    for _ in range(CASES):
        text = expression(rng)
        forms = [text, f"({text}) IS NULL", f"NOT ({text})", f"TRUE OR ({text})"]
        encoded = [properties(rng).encode() for _ in range(6)]
        cases.append((rng.choice(forms) if rng.randrange(3) == 0 else text, encoded))
    said = judged(reference, tmp_path, cases)
    wrong = list(disagreements(cases, said))
    words = [word for line in said for word in line]
    print({word: words.count(word) for word in sorted(set(words))})
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)}", *wrong[:40]])
    check_unread(reference, tmp_path, cases, said)
    assert all(words.count(word) > CASES // 50 for word in ("illegal", *SAYS.values()))


def test_numbers_in_properties_agree_with_java(reference, tmp_path, rng):
    """What text is a number, and which: Integer.valueOf, Long.valueOf and Double.valueOf."""
    texts = NUMBERS + [value(rng) for _ in range(400)]
    for digits in (15, 16, 17, 19, 40, 330, 790, 800, 801, 1200, 3000):
        for _ in range(8):
            text = "".join(rng.choices("0123456789", k=digits))
            cut = rng.randrange(digits + 1)
            texts += [text, f"{text[:cut]}.{text[cut:]}e{rng.randrange(-400, 400)}"]
            texts += [
                f"0.{'0' * digits}{text[:20]}e{digits}",
                f"{text[:20]}{'0' * digits}e-{digits}",
            ]
            texts += [f"0x{text[:cut]}.{text[cut:]}p{rng.randrange(-1100, 1100)}"]
    half = "9007199254740993" + "0" * 900  # between two doubles: the last digit decides
    texts += [half + "e-900", half + "1e-901", "0x1.00000000000008p0", "0x1.000000000000080001p0"]
    texts += ["0x" + "0" * 900 + "1.8p1", "0x0.0000000000000000000000000000000001p2000"]
    tests = [f"a {op} {n}" for op in ("=", ">") for n in ("3", "3000000000", "3.0")]
    tests += ["a < b", "a > b", "a = 1.0000000000000002", "a >= 9007199254740994.0"]
    pairs = [(text, rng.choice(texts)) for text in texts]
    encoded = [f"a\x01{one}\x02b\x01{other}\x02".encode() for one, other in pairs]
    encoded += [f"a\x01{one}\x02b\x01 {one} \x02".encode() for one in texts]
    cases = [(text, encoded) for text in tests]
    wrong = list(disagreements(cases, judged(reference, tmp_path, cases)))
    assert not wrong, "\n".join(wrong)
