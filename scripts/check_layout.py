#!/usr/bin/env python3
"""Checks how the source files depend on each other, and prints each finding; exit code 1 when there is one.

  - A file includes only its own folder and those that `needs_FOLDER` of the Makefile names (main.c: any).
  - There are no dependency cycles: neither of includes, nor of source files that call each other, nor of modules: name.h with
    name.c is one node, so that two modules which know each other through a header are found.
  - A header declares functions that at most MAX_SOURCES files define: one of more is a room without walls.
  - A folder has at most 25 modules (name.h with name.c) at one level.
  - A header exists where a second file or a test includes it, beside the file that it is the header of; or its first comment says
    what it hides (a library, a backend, an instruction set, the contract of a module), with that word. Of others at most MAX_LONE.

Calls are read from the object files of builds (nm). Without one, they are not checked, and a line says so.

usage: scripts/check_layout.py [BUILD ...]      BUILD: a folder such as build/release. Where nvcc is missing, add
                                                build/cudasim, which has the objects of the CUDA sources
"""
import collections
import os
import re
import subprocess
import sys

MAX_MODULES = 25
MAX_LONE = 20
MAX_SOURCES = 7
SUFFIXES = (".c", ".h", ".cu", ".cuh")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_folders():
    """The Makefile's folders, each with the set of folders that it may include."""
    rule = "print-layout: ; $(foreach f,$(folders),$(info folder $(f) $(needs_$(f)))) @true"
    lines = output("make", "-s", "CUDA=no", "--eval", rule, "print-layout").splitlines()
    return {words[1]: set(words[1:]) for words in (line.split() for line in lines) if words[:1] == ["folder"]}


def folder_of(path, folders):
    """The deepest folder of the Makefile that contains the file: kernels for kernels/cpu/isa/NAME.c."""
    folder = os.path.dirname(path)
    while folder and folder not in folders:
        folder = os.path.dirname(folder)
    return folder


def read_includes(files):
    for path in files:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                if include:
                    yield path, number, include.group(1)


def shared_headers(headers, defined):
    """(header, the sources that define its functions) of headers with more than MAX_SOURCES."""
    for path in headers:
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"//.*", "", file.read())
        for _ in range(3):  # removes bodies, including nested braces
            text = re.sub(r"\{[^{}]*\}", "", text)
        names = re.findall(r"^(?!static|#|typedef)[\w \n*]*?\b(\w+)\([^;{]*\)[^;{]*;", text, re.M)
        sources = {defined[name] for name in names if name in defined}
        if len(sources) > MAX_SOURCES:
            yield path, sorted(sources)


def read_calls(builds):
    """The calls between source files without suffix, (caller, callee, symbol), from the objects below the builds; and the
    source that defines each symbol."""
    defined, undefined = {}, collections.defaultdict(set)
    for build, folder, names in ((build, folder, names) for build in builds for folder, _, names in os.walk(build)):
        relative = os.path.relpath(folder, build)
        if relative.split(os.sep)[0] == "tests":
            continue
        for name in sorted(names):
            if not name.endswith(".o"):
                continue
            # Objects of kernels/cpu/isa are compiled once per instruction set, into kernels/cpu/SET.
            module = re.sub(r"^kernels/cpu/(portable|avx\w*)/", "kernels/cpu/isa/",
                            os.path.normpath(os.path.join(relative, name[:-2])))
            if not any(os.path.exists(module + suffix) for suffix in SUFFIXES):
                continue  # left over from a removed source
            for line in output("nm", os.path.join(folder, name)).splitlines():
                words = line.split()
                if len(words) == 2 and words[0] == "U":
                    undefined[module].add(words[1])
                elif len(words) == 3 and words[1] in "TDBR":
                    defined[words[2]] = module
    calls = [(module, defined[symbol], symbol) for module, symbols in undefined.items() for symbol in symbols & defined.keys()
             if defined[symbol] != module]
    return calls, defined


def lone_headers(product, all_files):
    """(header, its one user or None) of headers whose first comment does not name what they hide."""
    users = collections.defaultdict(set)
    for path, _, include in read_includes(all_files):
        if os.path.splitext(path)[0] != os.path.splitext(include)[0]:
            users[include].add(path)
    for path in product:
        if path.endswith((".h", ".cuh")) and len(users[path]) < 2:
            with open(path, encoding="utf-8") as file:
                comment = re.match(r"(//.*\n)*", file.read()).group()
            if not re.search(r"\bhides?\b", comment, re.I):
                yield path, next(iter(users[path]), None)


def cycles(edges):
    """Strongly connected components of more than one node (Tarjan), each a sorted list."""
    graph = collections.defaultdict(list)
    for caller, callee in edges:
        graph[caller].append(callee)
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def main():
    builds = sys.argv[1:]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.setrecursionlimit(10000)
    folders = read_folders()
    all_files = [path for path in output("git", "ls-files", "--cached", "--others", "--exclude-standard").split("\n")
                 if path.endswith((*SUFFIXES, ".cpp")) and os.path.exists(path)]
    files = [path for path in all_files if path.endswith(SUFFIXES) and path.split("/")[0] != "tests"]
    findings = [] if folders else ["Makefile: no folders found"]

    edges = {}
    for path, number, include in read_includes(files):
        folder, target = folder_of(path, folders), folder_of(include, folders)
        if folder and target not in folders[folder]:
            allowed = ", ".join(sorted(folders[folder] - {folder}))
            findings.append(f'{path}:{number}: {folder} may include only {allowed}: "{include}"')
        edges.setdefault((path, include), f"{path}:{number} includes {include}")

    if builds:
        calls, defined = read_calls(builds)
        if not calls:
            findings.append(f"{' '.join(builds)}: no object files to read calls from")
        for caller, callee, symbol in calls:
            edges.setdefault((caller, callee), f"{caller} uses {symbol} of {callee}")
        for header, sources in shared_headers([path for path in files if path.endswith((".h", ".cuh"))], defined):
            findings.append(f"{header}: declares functions of {len(sources)} files, expected at most {MAX_SOURCES}: "
                            + ", ".join(sources))
    else:
        print("skip: cycles of calls (no build given)")
    modules_known = {}
    for (path, include), why in edges.items():
        between = (os.path.splitext(path)[0], os.path.splitext(include)[0])
        if os.path.splitext(include)[1] in SUFFIXES and between[0] != between[1]:
            modules_known.setdefault(between, why)
    for known in (edges, modules_known):
        for cycle in cycles(known):
            lines = [why for (a, b), why in sorted(known.items()) if a in cycle and b in cycle]
            findings.append("dependency cycle of " + ", ".join(cycle) + "".join(f"\n    {line}" for line in lines))

    modules = collections.defaultdict(set)
    for path in files:
        modules[os.path.dirname(path)].add(os.path.splitext(os.path.basename(path))[0])
    for folder, names in sorted(modules.items()):
        if len(names) > MAX_MODULES:
            findings.append(f"{folder}/: {len(names)} modules, expected at most {MAX_MODULES}: split it")

    lone = sorted(lone_headers(files, all_files))
    if len(lone) > MAX_LONE:
        findings += [f"{header}: only {user or 'its own file'} includes it: merge them, or say in its first comment what it hides"
                     for header, user in lone]

    for finding in findings:
        print(finding)
    return 1 if findings else 0


sys.exit(main())
