"""A tiny model as a folder on disk, for code that opens models by name: commands and other processes."""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from draftwood.models.loading.detokenizer import BYTE_LETTERS
from draftwood.models.loading.hf_config import unparse
from draftwood.testing.parts import tiny

BEGIN, END = "<|begin|>", "<|end|>"
CONFIG = replace(tiny.CONFIG, vocab_size=258, num_layers=2, bos_token_id=256, eos_token_ids=(257,))
TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{{ 'assistant: ' }}"


def write_folder(
    folder: Path, seed: int = 0, max_positions: int | None = None, num_layers: int = CONFIG.num_layers
) -> Path:
    """Random weights from a seed and a tokenizer with a token for each byte, as the Hub would hold them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = replace(CONFIG, max_positions=max_positions or CONFIG.max_positions, num_layers=num_layers)
    save_file(tiny.tiny_weights(seed, config), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(unparse(config)))
    letters = sorted(BYTE_LETTERS, key=BYTE_LETTERS.__getitem__)
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate([*letters, BEGIN, END])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (BEGIN, END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BEGIN, "eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder
