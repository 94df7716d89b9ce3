"""The package itself: names, documentation, stubs."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import sidecore
from sidecore import _sidecore

FOLDER = Path(sidecore.__file__).parent


def test_every_public_name_is_there_and_says_what_it_is():
    for name in sidecore.__all__:
        thing = getattr(sidecore, name)
        assert name == "__version__" or inspect.getdoc(thing), name


def test_every_public_function_has_types():
    for name in sidecore.__all__:
        thing = getattr(sidecore, name)
        if inspect.isfunction(thing):
            hints = inspect.signature(thing)
            assert hints.return_annotation is not inspect.Signature.empty, name
            for parameter in hints.parameters.values():
                assert parameter.annotation is not inspect.Parameter.empty, (name, parameter)
    assert (FOLDER / "py.typed").exists()


def test_the_stub_is_what_the_compiled_part_has():
    tree = ast.parse((FOLDER / "_sidecore.pyi").read_text())
    stubbed = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            stubbed[node.name] = None
        elif isinstance(node, ast.ClassDef):
            stubbed[node.name] = {
                part.name if isinstance(part, ast.FunctionDef) else part.target.id
                for part in node.body
                if isinstance(part, (ast.FunctionDef, ast.AnnAssign))
            }
    real = {name for name in dir(_sidecore) if not name.startswith("_")}
    assert real == set(stubbed)
    for name, members in stubbed.items():
        if members is not None:
            public = {m for m in dir(getattr(_sidecore, name)) if not m.startswith("_")}
            assert public == members - {"__new__"}, name


def test_errors_have_codes_causes_and_remedies():
    codes = set()
    for name in sidecore.__all__:
        thing = getattr(sidecore, name)
        if inspect.isclass(thing) and issubclass(thing, sidecore.Error):
            codes.add(thing.code)
            error = thing("the cause", "the remedy")
            assert error.cause == "the cause" and error.remedy == "the remedy"
            assert str(error) == "the cause. the remedy"
    assert len(codes) == 10


def test_nothing_is_imported_that_is_not_asked_for():
    from conftest import run_python

    code = "import sidecore, sys; print([m for m in ('torch', 'numpy', 'jax') if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


def test_there_is_nothing_to_prepare_on_the_host():
    assert sidecore.prepare("cpu") is None
