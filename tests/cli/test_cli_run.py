"""`penstock run`: which programs are found, and what is said about those that are not. No Spark is started."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from penstock.api.checkpointing import Checkpointing
from penstock.cli import main
from penstock.core.errors import SettingsError, UsageError
from penstock.settings import NoRestart
from penstock.spark.overrides import in_place_of_arguments, known_keys, overridden, read_overrides

MODULE = """
numbers = [1]
def orders(env): ...
def two(env, other): ...
def nothing(): return 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_orders_program.py").write_text(MODULE)
    (tmp_path / "my_broken_program.py").write_text("import json\n\n1 / 0\n")
    (tmp_path / "my_lacking_program.py").write_text("import there_is_no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("my_orders_program", "names no program (write module:function"),
        ("my_orders_program.py:orders", "is a path and no module (write my_orders_program:orders)"),
        ("my_order_program:orders", "no module is called 'my_order_program' (did you mean my_orders_program?)"),
        ("my_orders_program:order", "has no 'order' (did you mean 'orders'?)"),
        ("my_orders_program:xyz", "has no 'xyz' (the programs in the module are orders, two, nothing)"),
        ("my_orders_program:numbers", "is of type list (give a function that takes an environment"),
        ("my_orders_program:two", "takes env, other (a program is a function that takes one argument"),
        ("my_orders_program:nothing", "takes no argument and returned int"),
        ("my_broken_program:x", "could not be imported: ZeroDivisionError: division by zero"),
        ("my_lacking_program:x", "could not be imported: ModuleNotFoundError: No module named 'there_is_no_such"),
    ],
)
def test_a_program_that_is_not_there_is_one_line_with_the_likely_name(folder, program, said):
    failed = CliRunner().invoke(main, ["run", program])
    assert failed.exit_code == 2
    (line,) = failed.stderr.splitlines()
    assert line.startswith("penstock: ")
    assert said in line


def test_the_line_of_an_error_in_the_module_is_named(folder):
    failed = CliRunner().invoke(main, ["run", "my_broken_program:x"])
    assert "my_broken_program.py, line 3)" in failed.stderr


def test_all_wrong_settings_are_told_at_once(folder):
    wrong = ["checkpointing.intervals=3s", "parallelism=x", "slots", "heartbeat_timeout_ms=3", "checkpointing.mode=x"]
    failed = CliRunner().invoke(main, ["run", "my_orders_program:orders", *(f"--set={text}" for text in wrong)])
    assert failed.exit_code == 2
    for said in (
        "did you mean 'checkpointing.interval'?",
        "parallelism is 'x'; give a whole number",
        "'slots' is no setting; write key=value",
        "did you mean 'slots.heartbeat_timeout_ms'?",
        "choose one of 'exactly-once', 'at-least-once'",
    ):
        assert said in failed.stderr


def test_settings_are_read_by_their_types():
    found = read_overrides(
        [
            "spare_slots=1",
            "max_parallelism=1_024",
            "restart=none",
            "spark.ui.port=4050",
            "checkpointing.interval=none",
            "checkpointing.unaligned=True",
            "checkpointing.directory=s3://bucket/x=y",
            "slots.heartbeat_timeout_ms=5000",
            "network.transport=tcp",
        ],
        parallelism=3,
    )
    assert found.whole == {"parallelism": 3, "spare_slots": 1, "max_parallelism": 1_024, "restart": NoRestart()}
    assert found.spark == {"spark.ui.port": "4050"}
    assert found.parts == {
        "checkpointing": {"interval": None, "unaligned": True, "directory": "s3://bucket/x=y"},
        "slots": {"heartbeat_timeout_ms": 5_000},
        "network": {"transport": "tcp"},
    }


def test_a_set_value_goes_before_the_argument_and_leaves_the_others(tmp_path):
    given = {"parallelism": 2, "checkpointing": Checkpointing(directory=tmp_path, retain=3), "slots": None}
    overrides = read_overrides(["checkpointing.interval=7s", "slots.log_level=DEBUG"], parallelism=4)
    with in_place_of_arguments(overrides):
        chosen = overridden(given)
    assert chosen["parallelism"] == 4
    assert (chosen["checkpointing"].settings.interval_ms, chosen["checkpointing"].retain) == (7_000, 3)
    assert chosen["slots"].log_level == "DEBUG"
    assert overridden(given) is given


def test_checkpoints_without_a_directory_are_refused():
    overrides = read_overrides(["checkpointing.interval=7s"])
    with in_place_of_arguments(overrides), pytest.raises(UsageError, match="takes no checkpoints"):
        overridden({"checkpointing": None})


def test_every_known_key_can_be_set_and_no_key_takes_a_secret():
    for key in known_keys():
        try:
            read_overrides([f"{key}=1"])
        except SettingsError as error:
            assert "no setting is called" not in str(error)  # noqa: PT017  # the others are about the value 1
    assert not [key for key in known_keys() if "seal" in key]
