"""Errors say what was wrong, where, and what is accepted."""

import pytest

import ckptplan
from ckptplan.errors import CkptplanError, Infeasible, InputError, did_you_mean, quote_value


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
