"""A tiny int8 model whose texts can be guessed: it mostly goes on to a fixed next token of the current one, and sometimes
elsewhere, by what stood before. Drafters that look at the text, at other texts or at features are then right in part."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.find import fingerprint
from draftwood.drafters.nets.files.store import Head
from draftwood.models.loading.hf_config import unparse
from draftwood.models.loading.load import load
from draftwood.models.loading.tensor_names import EMBEDDING, HEAD, expected
from draftwood.runners.open import runner_of
from draftwood.testing import folder

CONFIG = replace(folder.CONFIG, tie_embeddings=False)
V = CONFIG.vocab_size
CIRCLE = 6  # tokens after which a walk is where it was
SURE = 1.8  # how much larger the logit of the next token is


def following(token: int) -> int:
    """The next token of a walk: round a circle of so many."""
    return token - token % CIRCLE + (token + 1) % CIRCLE if token // CIRCLE < V // CIRCLE else token


def weights(seed: int = 2, layers: float = 0.15) -> dict[str, Tensor]:
    """`layers`: how strongly what stood before leads elsewhere."""
    noise = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=noise) for name, shape in expected(CONFIG).items()}
    found = {name: torch.ones_like(x) if name.endswith("norm.weight") else 0.3 * x for name, x in drawn.items()}
    for name in found:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            found[name] = layers * found[name]
    found[EMBEDDING] = drawn[EMBEDDING]
    found[HEAD] = torch.zeros(V, CONFIG.hidden_size)
    for token in range(V):
        found[HEAD][following(token)] = SURE * drawn[EMBEDDING][token] / 5
    return found


def walking_model(path: Path) -> Runner:
    folder.write_folder(path)
    save_file(weights(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(unparse(CONFIG)))
    return runner_of(load(str(path)))


def walking_head(target: Runner) -> Head:
    """A head that takes the embedding of the last token for the next feature, with some noise: often right."""
    config = HeadConfig("eagle", replace(CONFIG, num_layers=1), CONFIG.hidden_size, (FINAL,), rows=V)
    noise = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(t.shape, generator=noise) for name, t in net(config).state_dict().items()}
    tensors = {name: 0.1 * x if x.ndim > 1 else torch.ones_like(x) for name, x in drawn.items()}
    one = torch.eye(CONFIG.hidden_size)
    tensors["fc.weight"] = torch.cat([one, torch.zeros_like(one)], dim=1)
    return Head(config, tensors, torch.arange(V), fingerprint(target))
