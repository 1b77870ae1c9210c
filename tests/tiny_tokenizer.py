"""Writes a tiny byte-level BPE tokenizer with a chat template. Needs no torch."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 320
WORDS = (
    *("Ġthe", "Ġand", "Ġis", "Ġof", "Ġcapital", "Ġreview", "Ġgood", "Ġbad", "Ġanswer"),
    *("Ġquestion", "Ġpositive", "Ġnegative", "Ġname", "user", "ssistant"),
)
BOS, EOS, TURN = "<|bos|>", "<|eos|>", "<|turn|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\\n' + message['content'] + '<|eos|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> None:
    """Write a byte-level BPE tokenizer of `VOCAB_SIZE` tokens: any text is encodable."""
    specials = [BOS, EOS, TURN]
    byte_tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    vocab = dict.fromkeys([*specials, *byte_tokens])
    for word in WORDS:
        token = word[0]
        for letter in word[1:]:
            if len(vocab) < VOCAB_SIZE and token + letter not in vocab:
                merges.append((token, letter))
                vocab[token + letter] = None
            token += letter
    assert len(vocab) == VOCAB_SIZE, "every id that the model can produce is a token"
    ids = {token: index for index, token in enumerate(vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
