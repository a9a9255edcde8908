"""The other end of tests/train/formats/test_speculators.py: run by an interpreter that has the `speculators` package.

    make FOLDER ...   builds a tiny EAGLE-3 model as FOLDER.json says with the package's own code, and saves it
    load FOLDER ...   loads a folder that somebody else wrote

Both read FOLDER.inputs.pt and write FOLDER.logits.pt. The package unrolls drafts for all positions at once; step j of index
t is the j-th draft behind the pairs up to t, with given tokens.
"""

# pyright: reportMissingImports=false

import json
import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
from speculators import SpeculatorsConfig
from speculators.config import VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig

torch.set_num_threads(1)
STEPS, INDEX = 3, 4


def build(shape: dict, options: dict, ids: list[int]) -> Eagle3DraftModel:
    layer = LlamaConfig(num_hidden_layers=1, **shape)
    layer._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(speculative_tokens=STEPS)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(ids),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
        **options,
    )
    model = Eagle3DraftModel(config)
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            drawn = torch.randn(p.shape, generator=noise)
            p.copy_(0.15 * drawn if p.ndim > 1 else 1 + 0.1 * drawn)
    kept = torch.zeros(layer.vocab_size, dtype=torch.bool)
    kept[ids] = True
    if len(ids) < layer.vocab_size:
        model.load_vocab_mappings(kept, torch.tensor(ids) - torch.arange(len(ids)))
    return model


@torch.no_grad()
def logits(model: Eagle3DraftModel, given: dict) -> torch.Tensor:
    """[steps, draft vocabulary]: what the package's own forward pass hands to its head, caught on the way."""
    seen: list[torch.Tensor] = []
    model.eval().float()
    catch = model.lm_head.register_forward_hook(lambda _module, _input, out: seen.append(out[0, INDEX].clone()))
    tokens = given["tokens"][None]
    documents = torch.zeros_like(tokens)
    model(hidden_states=given["features"][None], input_ids=tokens, document_ids=documents, ttt_steps=STEPS)
    catch.remove()
    return torch.stack(seen)


def run(what: str, folder: Path) -> None:
    given = torch.load(folder.with_suffix(".inputs.pt"), weights_only=True)
    if what == "make":
        asked = json.loads(folder.with_suffix(".json").read_text())
        model = build(asked["shape"], asked["options"], asked["ids"])
        with torch.no_grad():
            model.embed_tokens.weight.copy_(given["embedding"])
        model.save_pretrained(folder)
    else:
        config = Eagle3SpeculatorConfig.from_pretrained(folder)
        config.transformer_layer_config._attn_implementation = "eager"
        model = Eagle3DraftModel.from_pretrained(folder, config=config)
    torch.save(logits(model, given), folder.with_suffix(".logits.pt"))


for place in sys.argv[2:]:
    run(sys.argv[1], Path(place))
