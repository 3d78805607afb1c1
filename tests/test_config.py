import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.config import RunConfig, load_recipe, resolve, shipped_recipes
from practicum.errors import UsageError


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_valid(name: str):
    assert load_recipe(name).name == name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.learnin_rate": "1e-5"}, r"'train.learnin_rate'.*Did you mean 'learning_rate'"),
        ({"rolout.group_size": "8"}, r"'rolout'.*Did you mean 'rollout'"),
        ({"train.algorithm": "grppo"}, r"train.algorithm.*'grpo'"),
        ({"rollout.temperature": "0"}, "teach nothing"),
        ({"rollout.group_size": "1"}, "use at least 2"),
        ({"rollout.group_size": "4", "rollout.min_group_size": "5"}, "above rollout.group_size"),
        ({"train.steps": "0"}, "train.steps"),
        ({"train.learning_rate": "-1"}, "train.learning_rate"),
        ({"train.learning_rate": "nan"}, "train.learning_rate"),
        ({"domains.floor": "0.4"}, "exceeds 1"),
        ({"domains.levels": "[0.8, 0.2]"}, "low <= high"),
        ({"domains.shares": "{}"}, "at least one domain"),
        ({"domains.shares": "{ addition = 0 }"}, "above 0"),
        ({"domains.shares": "{ addition = inf }"}, "finite"),
        ({"seed.deep": "1"}, "single value"),
        ({"seed": "often"}, "seed"),
        ({"name": '""'}, "name"),
        ({"train.steps": "true"}, "train.steps.*integer"),
        ({"train.steps": '"3"'}, "train.steps.*integer"),
        ({"sandbox.unsafe": "1"}, "sandbox.unsafe.*boolean"),
        ({"threads": "99999999999"}, "threads"),
        ({"engine.kind": "vlm"}, "engine.kind.*'vllm'"),
        ({"engine.speculat": "true"}, r"'engine.speculat'.*Did you mean 'speculate'"),
        ({"engine.kv.bit": "8"}, r"'engine.kv.bit'.*Did you mean 'bits'"),
        ({"engine.kv.bits": "5"}, "engine.kv.bits.*16, 8 or 4"),
        ({"engine.kv.recent": "100"}, "engine.kv.recent.*multiple of 128"),
        ({"engine.kv.recent": "128"}, "engine.kv.*where bits or top_pages"),
        ({"engine.kv.window": "64", "engine.kv.top_pages": "2"}, "a window or top_pages"),
        ({"engine.kv.sinks": "4"}, "sinks.*set window"),
        ({"engine.kv.layers": "[1]"}, "layers.*set one of them"),
        ({"engine.cache_gb": "0"}, "engine.cache_gb"),
        ({"engine.cache_gb": "1e300"}, "engine.cache_gb.*1048576"),
        ({"engine.swap_gb": "1e300"}, "engine.swap_gb.*1048576"),
        ({"engine.url": "http://127.0.0.1:8000"}, "url is for kind 'vllm-server' or .*'own'"),
        ({"engine.options.max_model_len": "64"}, "options is for kind 'vllm'"),
        ({"engine.kind": "vllm", "engine.kv.bits": "8"}, "kv is for kind 'own'.*'vllm'"),
        ({"engine.kind": "vllm", "engine.precision": "w8a8"}, "precision is for kind 'own'"),
        ({"engine.kind": "vllm-server"}, "needs the url of a server"),
        ({"engine.kind": "sglang-server", "engine.url": "127.0.0.1"}, "needs the url of a server"),
        ({"engine.kind": "openai-server", "engine.url": "http://h", "sft.steps": "3"}, "sft.steps"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_its_place(
    overrides: dict[str, str], message: str
):
    tree = {"seed": 1}
    with pytest.raises(UsageError, match=message):
        resolve(tree, overrides)


@pytest.mark.parametrize(
    "secret", [{"engine.url": "http://me:hunter2@h"}, {"engine.api_key_env": "sk-hunter2"}]
)
def test_a_key_in_a_recipe_is_refused_and_not_repeated(secret: dict[str, str]):
    server = {"engine.kind": "vllm-server", "engine.url": "http://h"}
    with pytest.raises(UsageError, match="api_key_env") as refused:
        resolve({}, server | secret)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1"),
        *(
            "http://exa mple",
            "http://h/a b",
            "http://h:80?x=1",
            "http://h/#x",
            "ftp://h",
            "http://",
        ),
        *("http://999.1.1.1", "http://a..b", "http://[:::]", "http://h\n", f"http://{'a' * 64}"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(url: str):
    server = {"kind": "vllm-server", "url": url}
    with pytest.raises(UsageError, match=r"needs the url of a server.*port from 1 to 65535"):
        resolve({"engine": server}, {})


@pytest.mark.parametrize(
    "url", ["http://h", "https://a-b.c:1/v1", "http://[::1]:65535", "http://localhost:80/"]
)
def test_an_address_of_a_server_is_taken(url: str):
    assert resolve({"engine": {"kind": "vllm-server", "url": url}}, {}).engine.url == url


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'demo'"):
        load_recipe("demmo")


def test_a_recipe_that_is_no_toml_says_where(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("name = \n")
    with pytest.raises(UsageError, match=r"broken.toml is not valid TOML.*line 1"):
        load_recipe(str(path))


def test_a_recipe_that_is_no_text_says_so(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UsageError, match="not a text file"):
        load_recipe(path)


def test_a_folder_named_like_a_recipe_does_not_hide_it(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_recipe("tiny").name == "tiny"


def test_a_recipe_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load_recipe(str(tmp_path / "none.toml"))


@given(st.integers(0, 10**6), st.text(alphabet="abc /-_.", min_size=1, max_size=20))
def test_overrides_arrive_with_their_types(seed: int, output: str):
    config = resolve({}, {"seed": str(seed), "output": f'"{output}"'})
    assert (config.seed, config.output) == (seed, output)


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"engine.kv.window": "64", "engine.kv.layers": "[0, 2]"},
        {"engine.kind": "vllm", "engine.options": "{ max_model_len = 64, dtype = 'auto' }"},
        {"engine.kind": "sglang-server", "engine.url": "https://h:30000/v1"},
    ],
)
def test_a_written_config_reads_back_equal(engine: dict[str, str]):
    config = load_recipe("demo", {"seed": "3"} | engine)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
