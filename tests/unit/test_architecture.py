"""The rules of the code base that a program can check: which module may import which, sizes, prints."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import eagle_core

PACKAGE = Path(eagle_core.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500

# From the bottom up; a module may import only from layers below its own. Within a layer only what
# SAME_LAYER lists. A package stands for all of its modules, which may import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "_version", "pip_fetch"),
    ("config",),
    ("stats", "differences", "rate", "session_info", "startup", "pages"),
    ("events",),
    (
        "transcript",
        "assets",
        "folders",
        "queueing",
        "precision",
        "devices",
        "progress",
        "outputs",
        "ports",
        "sizes",
        "templates",
    ),
    ("catalog", "instance", "toolkit"),
    ("own_models", "fit", "wheels"),
    ("kernels", "history", "context", "row_costs", "cost_pace"),
    ("tree", "sampling", "processors", "worth", "fast_layers"),
    (
        "drafters.base",
        "verify",
        "cache",
        "convert_gguf",
        "hub",
        "packing",
        "lookup",
        "pace",
        "draft_plan",
        "quantization",
    ),
    ("capture", "masks", "choice"),
    ("target", "default_model", "placement", "head_precision"),
    ("heads", "sources"),
    ("models", "machine", "candidates"),
    ("overview", "work", "headstart"),
    ("drafters", "guard", "selftest", "head_files"),
    ("engine",),
    ("testing", "text", "chat_text", "loading_head", "rounding"),
    ("loading", "stops", "rehearsal"),
    ("session",),
    ("worker",),
    ("bench", "train", "certificate", "compare"),
    ("race_figures", "relay"),
    ("ui", "server", "cli", "__main__"),
)
SAME_LAYER = {("cli", "ui"), ("cli", "server"), ("__main__", "cli")}
# Libraries with one home.
HOMES = {"gradio": ("ui",), "huggingface_hub": ("hub",), "httpx2": ("hub",)}
PRINTERS = ("cli", "__main__")


def name_of(path: Path) -> str:
    """Dotted name within the package, "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(name: str) -> str:
    """The entry of LAYERS that a module belongs to: the longest that is its name or a parent of it."""
    units = [unit for layer in LAYERS for unit in layer]
    found = [unit for unit in units if name == unit or name.startswith(f"{unit}.")]
    assert found, f"{name} is in no layer: add it to LAYERS"
    return max(found, key=len)


def level_of(unit: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if unit in layer)


def imports_of(tree: ast.Module) -> list[tuple[str, int]]:
    """(dotted module, line) of everything imported anywhere in a file, types included."""
    known = {name_of(path) for path in MODULES}
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write absolute imports"
            module = node.module or ""
            for alias in node.names:  # `from eagle_core import hub` imports a module
                is_module = f"{module}.{alias.name}".removeprefix("eagle_core.") in known
                found.append((f"{module}.{alias.name}" if is_module else module, node.lineno))
    return found


def is_in(name: str, homes: tuple[str, ...]) -> bool:
    return any(name == home or name.startswith(f"{home}.") for home in homes)


@pytest.fixture(params=MODULES, ids=lambda path: name_of(path) or "eagle_core")
def module(request: pytest.FixtureRequest) -> tuple[str, ast.Module]:
    path: Path = request.param
    return name_of(path), ast.parse(path.read_text(encoding="utf-8"))


def test_imports_point_down(module: tuple[str, ast.Module]) -> None:
    name, tree = module
    wrong: list[str] = []
    for imported, line in imports_of(tree):
        top = imported.split(".")[0]
        if top in HOMES and not is_in(name, HOMES[top]):
            wrong.append(f"line {line}: {top} belongs to {HOMES[top]}")
        if top != "eagle_core" or imported == "eagle_core" or not name:
            continue
        here, there = unit_of(name), unit_of(imported.removeprefix("eagle_core."))
        is_below = level_of(there) < level_of(here)
        is_own_package = here == there
        if not (is_below or is_own_package or (here, there) in SAME_LAYER):
            wrong.append(f"line {line}: {here} may not import {there}")
    assert not wrong, "\n".join(wrong)


def test_drafters_do_not_know_each_other(module: tuple[str, ast.Module]) -> None:
    name, tree = module
    if not name.startswith("drafters.") or name == "drafters.registry":
        return
    drafters = {n for n, _ in imports_of(tree) if n.startswith("eagle_core.drafters.")}
    assert drafters <= {"eagle_core.drafters.base"}


def test_functions_and_files_are_short(module: tuple[str, ast.Module]) -> None:
    _, tree = module
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in functions
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert not long
    last = tree.body[-1].end_lineno if tree.body else 0
    assert (last or 0) <= MAX_FILE_LINES


def test_only_the_command_line_prints(module: tuple[str, ast.Module]) -> None:
    name, tree = module
    prints = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not prints or is_in(name, PRINTERS)


def test_no_handler_swallows_everything(module: tuple[str, ast.Module]) -> None:
    """No bare except; one that catches Exception re-raises, but at the boundaries that report it."""
    name, tree = module
    boundaries = (
        "session", "bench", "ui", "cli", "guard", "kernels.tape", "kernels.graphs", "work", "worker.host",
            "rehearsal",
    )  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"line {node.lineno}: bare except"
        catches_all = isinstance(node.type, ast.Name) and node.type.id in {
            "Exception",
            "BaseException",
        }
        raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        assert not catches_all or raises or is_in(name, boundaries), f"line {node.lineno}"


def test_every_module_says_what_it_does_and_what_it_exports(module: tuple[str, ast.Module]) -> None:
    _, tree = module
    if not tree.body:
        return
    assert ast.get_docstring(tree)
    exported = next(
        (
            [element.value for element in node.value.elts if isinstance(element, ast.Constant)]
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
            and isinstance(node.value, ast.List | ast.Tuple)
        ),
        [],
    )
    defined = {
        getattr(node, "name", None) or getattr(target, "id", None)
        for node in tree.body
        for target in (getattr(node, "targets", None) or [getattr(node, "target", node)])
    }
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert set(exported) <= defined | imported
    assert len(exported) == len(set(exported))
