#!/usr/bin/env python3
"""Writes a manual page from what a program says with --help.

Usage: man_page.py --section N --version V --out FILE [--subcommands] [--see-also "a(1), b(8)"]
                   [--file PATH=TEXT]... PROGRAM [WORD]...

PROGRAM and its WORDs are run with --help added, in the form of CLI11: a description, "Usage:", groups
of options, then more text. Its basename and the WORDs, joined by dashes, name the page. With
--subcommands, each one that the help lists is asked too and becomes a section of the page.
"""

import argparse
import pathlib
import re
import subprocess

GROUP = re.compile(r"(Options|Positionals|Subcommands):$")
OPTION_GROUP = re.compile(r"\s*\[Option Group: (.*)\]$")
SENTENCE = re.compile(r"[A-Z][a-z]+ ")
HEADING = re.compile(r"([A-Z][^.:]*):$")  # of the text behind the options: "Examples:"


def escape(text):
    """Text of a roff line: what roff would read as its own is made plain."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    for char, name in (("'", "\\(aq"), ("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")):
        text = text.replace(char, name)
    return "\\&" + text if text.startswith(".") else text


def bold(text):
    return f"\\fB{escape(text)}\\fR"


def indent_of(line):
    return len(line) - len(line.lstrip(" "))


def paragraphs(lines):
    """Text as roff: lines that start at the margin are filled, others stay as they are."""
    out, literal = [], False
    for line in lines:
        if not line.strip():
            if literal:
                out.append(".EE")
                literal = False
            out.append(".PP")
            continue
        if (indent_of(line) > 0) != literal:
            out += [".PP", ".EX"] if not literal else [".EE", ".PP"]
            literal = not literal
        elif not literal and out and out[-1][-1] not in ".,;:" and SENTENCE.match(line):
            out.append(".br")  # a line that ended without a stop
        out.append(escape(line[2:] if literal and line.startswith("  ") else line.strip()))
    if literal:
        out.append(".EE")
    # No paragraph begins with another, or ends the text.
    kept = []
    for line in out:
        if line == ".PP" and (not kept or kept[-1] == ".PP"):
            continue
        kept.append(line)
    while kept and kept[-1] == ".PP":
        kept.pop()
    return kept


class Help:
    """The parts of one --help."""

    def __init__(self, text):
        lines = [line.rstrip() for line in text.splitlines()]
        usage = next(i for i, line in enumerate(lines) if line.startswith("Usage: "))
        self.description = lines[:usage]
        self.usage = lines[usage].removeprefix("Usage: ")
        self.groups, self.rest = [], []  # (title, [(name, text)])
        self._column = next(line.index("Print this help") for line in lines
                            if line.lstrip().startswith("-h,--help"))
        i = usage + 1
        while i < len(lines) and not self.rest:
            line = lines[i]
            if match := OPTION_GROUP.match(line):
                i = self._read_group(lines, i + 1, match[1])
            elif match := GROUP.match(line.strip()):
                i = self._read_group(lines, i + 1, match[1])
            elif line.strip():
                self.rest = lines[i:]
            else:
                i += 1

    def _read_group(self, lines, i, title):
        entries = []
        while i < len(lines) and lines[i].startswith("  "):
            line = lines[i]
            i += 1
            # Words of an option group about itself.
            if title not in ("Options", "Positionals", "Subcommands") and indent_of(line) < 4:
                continue
            column = self._column + indent_of(line) - 2
            if i < len(lines) and lines[i] and indent_of(lines[i]) >= column:
                name, text = line.strip(), lines[i].strip()
                i += 1
            else:
                name, text = line[:column].strip(), line[column:].strip()
            entries.append((name, text))
        self.groups.append((title, entries))
        return i

    def entries(self, title):
        return next((entries for name, entries in self.groups if name == title), [])

    def roff(self, heading):
        """Everything but the description; `heading` makes the line that opens a part."""
        out = []
        for title, entries in self.groups:
            if not entries:
                continue
            out.append(heading(title if title in ("Options", "Positionals", "Subcommands")
                               else f"{title}: exactly one of"))
            for name, text in entries:
                out += [".TP", bold(name), escape(text) if text else "\\&"]
        for title, lines in self._parts():
            out.append(heading(title))
            keys = re.compile(r"  (\S+ = .*)$")
            if not any(keys.match(line) for line in lines):
                out += paragraphs(lines)
                continue
            for line in lines:  # configuration keys and what they mean
                if match := keys.match(line):
                    out += [".TP", bold(match[1])]
                elif line.strip():
                    out.append(escape(line.strip()))
        return out

    def _parts(self):
        """(title, lines) of the text behind the options."""
        parts = []
        for line in self.rest:
            exit_codes = line.removeprefix("Exit codes: ")
            if exit_codes != line:
                parts.append(("Exit status", [exit_codes]))
            elif match := HEADING.match(line):
                parts.append((match[1], []))
            elif parts:
                parts[-1][1].append(line)
            elif line.strip():
                parts.append(("Notes", [line]))
        return parts


def split_description(lines, name):
    """(one line for NAME, the lines of the description, of EXAMPLES and of EXIT STATUS)."""
    text = " ".join(line for line in lines if line.strip()).removeprefix(f"{name}: ")
    summary = re.split(r"\.(?: |$)", text)[0]
    codes = next((i for i, line in enumerate(lines) if line.startswith("Exit codes: ")), len(lines))
    examples = next((i for i, line in enumerate(lines) if line == "Examples:"), codes)
    status = [line.removeprefix("Exit codes: ") for line in lines[codes:]]
    body = list(lines[:examples])
    body[0] = body[0].removeprefix(f"{name}: ")
    body[0] = body[0][0].upper() + body[0][1:]
    # A word such as GGUF keeps its letters.
    if not summary[:2].isupper():
        summary = summary[0].lower() + summary[1:]
    return summary, body, lines[examples + 1:codes], status


def ask(command):
    return Help(subprocess.run([*command, "--help"], check=True, capture_output=True, text=True,
                               env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}).stdout)


def section(title):
    return f".SH {escape(title.upper())}"


def subsection(title):
    return f".PP\n{bold(title)}\n.br"


def page(options):
    program = pathlib.Path(options.program[0]).name
    command = [program, *options.program[1:]]
    name = "-".join(command)
    top = ask(options.program)
    summary, body, examples, status = split_description(top.description, " ".join(command))
    out = ['.\\" Written by packaging/man_page.py from what the program says with --help.',
           f'.TH {escape(name.upper())} {options.section} "" "ringfill {options.version}" '
           f'"Ringfill"', ".nh", ".ad l",
           ".SH NAME", f"{escape(name)} \\- {escape(summary)}",
           ".SH SYNOPSIS", bold(top.usage), section("Description"), *paragraphs(body)]
    out += top.roff(section)
    if options.subcommands:
        out.append(section("Commands"))
        for command, _ in top.entries("Subcommands"):
            sub = ask([*options.program, command])
            out += [f".SS {escape(sub.usage)}", *paragraphs(sub.description)]
            out += sub.roff(subsection)
    if examples:
        out += [section("Examples"), *paragraphs(examples)]
    if status:
        out += [section("Exit status"), *paragraphs(status)]
    if options.file:
        out.append(section("Files"))
        for path, text in (entry.split("=", 1) for entry in options.file):
            out += [".TP", bold(path), escape(text)]
    if options.see_also:
        out += [section("See also"), escape(options.see_also)]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--section", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--subcommands", action="store_true")
    parser.add_argument("--see-also", default="")
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    options.out.write_text(page(options), encoding="utf-8")


if __name__ == "__main__":
    main()
