"""A net from its config, and a head's weights poured into it, strictly."""

from torch import nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.modules.acceptance import AcceptanceNet
from draftwood.drafters.nets.modules.block import BlockNet
from draftwood.drafters.nets.modules.decision import DecisionNet
from draftwood.drafters.nets.modules.eagle import EagleNet
from draftwood.drafters.nets.modules.eagle3 import Eagle3Net
from draftwood.drafters.nets.modules.exit import ExitLayerNet, ExitNet, ExitsNet
from draftwood.drafters.nets.modules.griffin import GriffinNet
from draftwood.drafters.nets.modules.hydra import HydraNet
from draftwood.drafters.nets.modules.length import LengthNet
from draftwood.drafters.nets.modules.medusa import MedusaNet, MedusaTablesNet
from draftwood.drafters.nets.modules.mlp import MLPNet, MLPTablesNet
from draftwood.drafters.nets.modules.probes import ProbesNet
from draftwood.drafters.nets.modules.semi import SemiNet
from draftwood.drafters.nets.modules.small_lm import LanguageNet
from draftwood.errors import WeightsError

NETS: dict[str, type[nn.Module]] = {
    "eagle": EagleNet,
    "eagle3": Eagle3Net,
    "medusa": MedusaNet,
    "hydra": HydraNet,
    "mlp": MLPNet,
    "language": LanguageNet,
    "decision": DecisionNet,
    "length": LengthNet,
    "acceptance": AcceptanceNet,
    "exit": ExitNet,
    "exit_layer": ExitLayerNet,
    "nested": LanguageNet,
    "exits": ExitsNet,
    "probes": ProbesNet,
    "griffin": GriffinNet,
    "deep_eagle": EagleNet,
    "deep_medusa": MedusaNet,
    "block": BlockNet,
    "semi": SemiNet,
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
