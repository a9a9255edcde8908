"""Probes that were trained for a moment on texts of a tiny target, so that some of their drafts are right."""

from functools import cache

import torch

from draftwood.core.config import EngineConfig
from draftwood.core.protocols import Runner
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.learners.at_probes import AtProbes
from draftwood.drafters.learners.plans import probes_plan
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.make_drafter import probes_model
from draftwood.drafters.nets.modules.probes import ProbesModel
from draftwood.recipes import autoregressive
from draftwood.testing.parts.tiny import CONFIG
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import Teacher
from own_layers import PROMPTS, TARGETS

STAGES = 3
STEPS, LENGTH = 40, 24


def head(name: str) -> Head:
    """Trained beside the target of this name; the device's has the weights of the float64 one. Also where the first test
    that asks for it is within a run, which records no gradients."""
    with torch.inference_mode(False), torch.enable_grad():
        return _trained("float64" if name == "device" else name)


@cache
def _trained(name: str) -> Head:
    target = TARGETS[name]()
    keep = torch.arange(CONFIG.vocab_size)
    plan = probes_plan(target, keep, probes=STAGES, inner=None, vectors=True, rate=1e-2, seed=1, share=1.0)
    learner, teacher = plan.learns[0].learner, Teacher(target)
    assert isinstance(learner, AtProbes)
    text = texts(target)
    learns = torch.optim.AdamW(learner.groups()["probes"], lr=1e-2)
    for step in range(STEPS):
        ids = text[torch.randint(len(text), (8,), generator=torch.Generator().manual_seed(step))]
        live = torch.ones_like(ids, dtype=torch.bool)
        shown = teacher.show(ids, live, live, learner.needs.taps, step)
        learns.zero_grad()
        for _, loss, _ in learner.losses(shown, 0.0):
            loss.backward()
        learns.step()
    return Head(plan.config, {name: x.detach().float() for name, x in learner.net.state_dict().items()}, None, "", {})


def texts(target: Runner) -> torch.Tensor:
    """Answers of the target itself, greedy ones and sampled ones, with their prompts."""
    prompts = [*PROMPTS, *PROMPTS]
    each = [
        SamplingParams(max_tokens=LENGTH, temperature=float(i >= len(PROMPTS)), seed=i) for i in range(len(prompts))
    ]
    done = serve(make_engine(target, autoregressive.build(target), slots=EngineConfig().max_num_seqs), prompts, each)
    return torch.tensor([(r.prompt + r.output)[:LENGTH] for r in done])


def model(name: str) -> ProbesModel:
    return probes_model(head(name), TARGETS[name]())
