"""Loading what stays: the garbage collector rests meanwhile, and goes on afterwards."""

import gc

import pytest

from practicum.startup import lasting


@pytest.fixture(autouse=True)
def collector() -> object:
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_and_goes_on() -> None:
    with lasting():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error_too() -> None:
    with pytest.raises(ImportError), lasting():
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with lasting():
        pass
    assert not gc.isenabled()


def test_what_was_loaded_is_not_looked_through_again() -> None:
    before = gc.get_freeze_count()
    with lasting():
        stays = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= before + len(stays)
