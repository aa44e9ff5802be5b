"""What exists in the launcher's process only: it is found without running code of the user's."""

from __future__ import annotations

from typing import Any

from xmp._processes.report.only_here import only_on_the_class


class Asked(type):
    """A metaclass that has an answer for whatever the launcher may ask its classes."""

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"the launcher has run the user's code for {name}")

    def __hash__(cls) -> int:
        raise AssertionError("the launcher has asked for the hash of a class")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("the launcher has compared a class")


def test_classes_are_searched_without_their_metaclass() -> None:
    bystander = Asked("Bystander", (), {})

    class SetUpHere:
        pass

    SetUpHere.shared = 3  # type: ignore[attr-defined]
    assert only_on_the_class("SetUpHere", "shared").startswith("SetUpHere.shared exists in this")
    assert only_on_the_class("SetUpHere", "other") == ""
    assert type(bystander) is Asked
