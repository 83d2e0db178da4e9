"""Errors say what was wrong, where, and what is accepted."""

import ast
import copy
import pickle
from pathlib import Path

import pytest

import ckptplan
from ckptplan.calibration.calibrate import Noisy
from ckptplan.errors import CkptplanError, Infeasible, InputError, MissingExtra, did_you_mean, quote_value
from ckptplan.report.sketch import TooLongToDraw
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.torch.device.memory import OutOfMemory
from ckptplan.torch.fit.watch import StaleSizesError
from ckptplan.torch.run.steps import LateStateError


def test_all_errors_have_one_root() -> None:
    assert issubclass(InputError, CkptplanError)
    assert issubclass(Infeasible, CkptplanError)


def test_exit_codes() -> None:
    assert (CkptplanError.exit_code, InputError.exit_code, Infeasible.exit_code) == (1, 2, 3)
    assert CkptplanError("x").details() == {}


def test_an_error_is_told_from_further_out() -> None:
    inner = InputError("is missing", field="local_bytes", accepted="a size")
    outer = inner.inside(source="a.toml", prefix="profile")
    assert str(outer) == "a.toml: profile.local_bytes: is missing (accepted: a size)"
    assert outer.details() == {
        "source": "a.toml",
        "field": "profile.local_bytes",
        "value": None,
        "accepted": "a size",
    }


def test_values_are_quoted_short() -> None:
    assert quote_value("x" * 1000).endswith("...")
    assert quote_value(10**5000) == "an integer of about 5,000 digits"


def test_only_near_words_are_proposed() -> None:
    assert did_you_mean("zzz", ["standard", "double"]) == ""


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        ckptplan.optimise  # noqa: B018
    assert "optimize" in dir(ckptplan)
    assert all(hasattr(ckptplan, name) for name in ckptplan.__all__)


ERRORS = [
    CkptplanError("something"),
    InputError("give 3", field="steps", value=2, accepted="more", source="a.toml"),
    MissingExtra("parquet", package="pyarrow"),
    Infeasible(
        binding="local_bytes",
        need=2.0,
        have=1.0,
        subject="nothing fits",
        headroom=0.1,
        suggestions=[{"change": "steps", "value": 1, "overhead": 0.0}],
        stays={"resident_bytes": 1},
    ),
    IllegalAction(3, None, "a law", "a state", source="a.csv", line=4),
    Noisy(field="forward_seconds", spread=0.2, most=0.05),
    OutOfMemory(predicted=2**20, available=None, suggestion="a smaller batch", cause="no memory"),
    LateStateError("net.h is changed by a later step"),
    StaleSizesError("the state of step 3 takes more"),
    TooLongToDraw(100_000),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_another_process_is_the_same(error: CkptplanError) -> None:
    error.add_note("a note")
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - made here
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert same.details() == error.details()
        assert vars(same) == vars(error)
        # Options stand in the place of parameters on the command line there, too.
        assert getattr(same.args[0], "parts", None) == getattr(error.args[0], "parts", None)


def test_every_error_of_the_package_is_among_them() -> None:
    """All classes that derive from the root, by their source: a new one belongs into the list above."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module in Path(ckptplan.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    found = {"CkptplanError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    assert {type(error).__name__ for error in ERRORS} == found


def test_what_cannot_be_pickled_is_kept_as_its_text() -> None:
    error = InputError("is no number", field="value", value=lambda: 0)
    same = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert str(same) == str(error)
    assert same.value.startswith("<function")
