import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftwood.core.config import ModelConfig
from draftwood.errors import OptionError, TokenizerError
from draftwood.models.loading.tokenizer import Tokenizer


@pytest.fixture
def tokenizer(write_folder) -> Tokenizer:
    return Tokenizer.from_folder(write_folder())


def edit(folder: Path, file: str, **changes) -> Path:
    path = folder / file
    raw = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(raw | changes))
    return folder


def test_text_comes_back(tokenizer: Tokenizer):
    for text in ("hello world", "grüße 😀\n", "", " "):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_fingerprint_tells_which_token_each_id_means(write_folder):
    folder = write_folder()
    first = Tokenizer.from_folder(folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(text), indent=7))
    assert Tokenizer.from_folder(folder).fingerprint == first.fingerprint, "another packaging of the same vocabulary"
    raw = json.loads(text)
    vocab = raw["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    other = Tokenizer.from_folder(folder)
    assert other.vocab_size == first.vocab_size and other.fingerprint != first.fingerprint


@pytest.mark.parametrize("text", ["half a \ud83d", ["a", "list"]])
def test_what_is_no_text_is_refused_at_the_door(tokenizer: Tokenizer, text):
    with pytest.raises(OptionError, match="text cannot be encoded"):
        tokenizer.encode(text)


def test_special_tokens_are_known_and_hidden(tokenizer: Tokenizer):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (256, (257,), 264)
    ids = tokenizer.encode("hello<|end|>")
    assert ids == [261, 257]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "hello<|end|>"


def test_what_one_token_adds_is_told_in_bytes_and_for_people(tokenizer: Tokenizer):
    ids = tokenizer.encode("ü wo")
    assert [tokenizer.token_bytes(token) for token in ids] == [b"\xc3", b"\xbc", b" wo"]
    assert [tokenizer.token_text(token) for token in ids] == ["\ufffd", "\ufffd", " wo"]
    assert tokenizer.token_text(257) == "<|end|>"
    assert tokenizer.token_bytes(9999) == b""


def test_bytes_of_tokens_add_up_to_the_text(smollm2):
    tokenizer = smollm2[2]
    text = "Grüße, 世界! 😀 <|im_end|>\n\n  x = 3.14"
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)) == text.encode()


def test_bos_is_added_only_when_asked_for_and_wanted(write_folder):
    folder = write_folder()
    assert Tokenizer.from_folder(folder).encode("hello", special=True) == [261]
    wanting = Tokenizer.from_folder(edit(folder, "tokenizer_config.json", add_bos_token=True))
    assert wanting.encode("hello") == [261]
    assert wanting.encode("hello", special=True) == [256, 261]


def test_a_post_processor_that_adds_bos_is_heeded_unless_switched_off(write_folder):
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing

    folder = write_folder()
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 256)])
    backend.save(str(folder / "tokenizer.json"))
    assert Tokenizer.from_folder(folder).encode("hello", special=True) == [256, 261]
    off = Tokenizer.from_folder(edit(folder, "tokenizer_config.json", add_bos_token=False))
    assert off.encode("hello", special=True) == [261]


def test_special_tokens_are_found_in_either_file_and_spelling(write_folder):
    folder = write_folder()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<|end|>"}, "bos_token": "<|bos|>"})
    )
    found = Tokenizer.from_folder(folder)
    assert (found.bos_token_id, found.eos_token_ids) == (256, (257,))


def test_a_saved_limit_of_length_never_cuts_a_prompt(write_folder):
    folder = write_folder()
    edit(
        folder,
        "tokenizer.json",
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    )
    assert len(Tokenizer.from_folder(folder).encode("a b c d")) == 7


def test_chats_are_rendered_and_read_with_their_special_tokens(tokenizer: Tokenizer):
    talk = [{"role": "user", "content": "hello"}]
    assert tokenizer.render(talk) == "user: hello<|end|>assistant: "
    ids = tokenizer.encode_chat(talk)
    assert 257 in ids and tokenizer.decode(ids, skip_special=False) == tokenizer.render(talk)
    with pytest.raises(OptionError):
        tokenizer.render([])


def test_a_template_file_wins_over_the_config(write_folder):
    folder = write_folder()
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert Tokenizer.from_folder(folder).render([{"role": "user", "content": "x"}]) == "x!"


def test_of_several_templates_the_default_is_taken(write_folder):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder = edit(write_folder(), "tokenizer_config.json", chat_template=named)
    assert Tokenizer.from_folder(folder).render([{"role": "user", "content": "x"}]) == "d"


def test_a_model_without_template_still_reads_plain_text(write_folder, tiny: ModelConfig):
    tokenizer = Tokenizer.from_folder(edit(write_folder(), "tokenizer_config.json", chat_template=None))
    tokenizer.check(tiny)
    assert tokenizer.encode("hello") == [261]
    with pytest.raises(TokenizerError, match=r"(?s)no chat template\nhint: give a plain prompt"):
        tokenizer.render([{"role": "user", "content": "x"}])


def test_a_tokenizer_that_fits_passes_and_a_larger_one_does_not(tokenizer: Tokenizer, tiny: ModelConfig):
    tokenizer.check(tiny)
    tokenizer.check(replace(tiny, vocab_size=300))  # a vocabulary padded for speed is usual
    with pytest.raises(TokenizerError, match=r"(?s)'Ġwo' has id 263, the model's vocabulary has 263 tokens.*hint:"):
        tokenizer.check(replace(tiny, vocab_size=263))


def test_an_end_token_outside_the_tokenizer_is_refused(tokenizer: Tokenizer, tiny: ModelConfig):
    with pytest.raises(TokenizerError, match=r"eos_token_id 280 of config.json is not in"):
        tokenizer.check(replace(tiny, vocab_size=300, eos_token_ids=(257, 280)))


def test_a_template_that_loses_words_is_refused_with_the_tokenizer(write_folder, tiny: ModelConfig):
    folder = edit(write_folder(), "tokenizer_config.json", chat_template="{{ messages[0].role }}")
    with pytest.raises(TokenizerError, match="loses the user message"):
        Tokenizer.from_folder(folder).check(tiny)


def test_missing_and_broken_files_are_named(write_folder):
    folder = write_folder()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer.json: not a tokenizer"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"(?s)no tokenizer.json.*download complete"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.model").write_text("")
    with pytest.raises(TokenizerError, match=r"tokenizer.model into tokenizer.json"):
        Tokenizer.from_folder(folder)


@pytest.mark.slow
def test_nothing_heavy_is_imported(child_env, write_folder):
    import subprocess
    import sys

    code = "import sys; from draftwood.models.loading.tokenizer import Tokenizer; "
    code += "Tokenizer.from_folder(sys.argv[1]).encode('a'); "
    code += "assert not {'transformers', 'gguf', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(write_folder())], env=child_env(), check=True)
