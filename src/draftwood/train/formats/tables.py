"""The target's two tables inside the files of a head."""

from draftwood.drafters.nets.store import Head
from draftwood.errors import WeightsError
from draftwood.train.formats.exchange import Exchange
from draftwood.train.formats.files import Found

EMBEDDING = "embed_tokens.weight"
CLOSE = 1e-3  # two packagings of the same table; half precision keeps its rows to about this


def compare_embedding(found: Found, exchange: Exchange) -> None:
    """Our heads read the target's embedding. A copy that differs is said: the drafts will differ too."""
    table = found.tensors.get(EMBEDDING)
    if table is None:
        exchange.say("embedding: not in the file, so the target's")
        return
    if exchange.target is None:
        exchange.say("embedding: the target's will be read; --target compares the file's copy with it")
        return
    if table.shape != exchange.target.embedding.shape:
        raise WeightsError(
            f"{found.where}: {EMBEDDING} is {list(table.shape)}, "
            f"that of {exchange.target.name} {list(exchange.target.embedding.shape)}"
        )
    apart = float((table - exchange.target.embedding).abs().max())
    if apart <= CLOSE:
        exchange.say(f"embedding: the same as the target's (largest difference {apart:.1e})")
    else:
        exchange.say(
            f"warning: embedding: the file's copy differs from that of {exchange.target.name} by up to {apart:.3g}; "
            "drafts will read the target's. Is this the right target?"
        )


def same_width(head: Head) -> None:
    """WeightsError where the draft is not as wide as the target: others read one embedding of the draft's own width."""
    if head.config.layer.hidden_size != head.config.target_hidden:
        raise WeightsError(
            f"the draft is {head.config.layer.hidden_size} wide and its target {head.config.target_hidden}: "
            "this format has an embedding of the draft's own width there, ours reads the target's"
        )
