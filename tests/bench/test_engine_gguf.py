"""What is written as GGUF reads back as the same model, rounded to float16."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from practicum.bench.engine_gguf import export_gguf
from practicum.errors import UsageError
from practicum.policy.model.tiny import write_tiny


def test_weights_are_those_of_the_folder_with_rotary_pairs_interleaved(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    export_gguf(tmp_path, tmp_path / "gguf" / "tiny.gguf")
    source = load_file(tmp_path / "model.safetensors")
    reader = gguf.GGUFReader(str(tmp_path / "gguf" / "tiny.gguf"))
    written = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(written) == len(source)
    down = source["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(written["blk.1.ffn_down.weight"], down.astype(np.float16))
    norm = source["model.norm.weight"]
    np.testing.assert_array_equal(written["output_norm.weight"], norm)
    config = json.loads((tmp_path / "config.json").read_text())
    size = config["hidden_size"] // config["num_attention_heads"]
    query = source["model.layers.1.self_attn.q_proj.weight"].astype(np.float16)
    for row, values in enumerate(written["blk.1.attn_q.weight"]):
        head, within = divmod(row, size)
        pair, member = divmod(within, 2)
        np.testing.assert_array_equal(values, query[head * size + member * size // 2 + pair])


def test_control_tokens_stay_control_tokens(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    export_gguf(tmp_path, tmp_path / "tiny.gguf")
    fields = gguf.GGUFReader(str(tmp_path / "tiny.gguf")).fields
    texts = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert kinds[texts.index("<|im_end|>")] == gguf.TokenType.CONTROL
    assert kinds[texts.index("a")] == gguf.TokenType.NORMAL


def test_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    with pytest.raises(UsageError, match="leave openvino out"):
        export_gguf(tmp_path, tmp_path / "x.gguf")
