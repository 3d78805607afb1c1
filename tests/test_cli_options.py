from practicum.cli_options import split_overrides


def test_overrides_are_told_apart_from_words():
    words = ["train", "demo", "--train.steps", "3", "--domains.floor=0.1", "--seed", "1"]
    assert split_overrides(words) == (
        ["train", "demo", "--seed", "1"],
        {"train.steps": "3", "domains.floor": "0.1"},
    )
