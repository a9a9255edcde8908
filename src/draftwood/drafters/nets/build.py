"""A net from its config, and a head's weights poured into it, strictly."""

from torch import nn

from draftwood.drafters.nets.config import HeadConfig
from draftwood.drafters.nets.decision import DecisionNet
from draftwood.drafters.nets.eagle import EagleNet
from draftwood.drafters.nets.eagle3 import Eagle3Net
from draftwood.drafters.nets.exit import ExitLayerNet, ExitNet
from draftwood.drafters.nets.hydra import HydraNet
from draftwood.drafters.nets.medusa import MedusaNet, MedusaTablesNet
from draftwood.drafters.nets.mlp import MLPNet, MLPTablesNet
from draftwood.drafters.nets.small_lm import LanguageNet
from draftwood.drafters.nets.store import Head
from draftwood.errors import WeightsError

NETS: dict[str, type[nn.Module]] = {
    "eagle": EagleNet,
    "eagle3": Eagle3Net,
    "medusa": MedusaNet,
    "hydra": HydraNet,
    "mlp": MLPNet,
    "language": LanguageNet,
    "decision": DecisionNet,
    "exit": ExitNet,
    "exit_layer": ExitLayerNet,
}
WITH_TABLES: dict[str, type[nn.Module]] = {"medusa": MedusaTablesNet, "mlp": MLPTablesNet}


def net(config: HeadConfig) -> nn.Module:
    """Untrained."""
    return (WITH_TABLES if config.own_tables else NETS)[config.kind](config)


def filled(head: Head) -> nn.Module:
    """With the head's weights; WeightsError names a tensor that is missing, extra or of another shape."""
    module = net(head.config)
    want, have = module.state_dict(), head.tensors
    missing, extra = sorted(set(want) - set(have)), sorted(set(have) - set(want))
    if missing or extra:
        raise WeightsError(f"{head.config.kind} head: missing {missing or 'nothing'}, unexpected {extra or 'nothing'}")
    for name, t in want.items():
        if t.shape != have[name].shape:
            raise WeightsError(
                f"{head.config.kind} head: {name} is {list(have[name].shape)}, its config asks for {list(t.shape)}"
            )
    module.load_state_dict(have)
    return module.requires_grad_(False)
