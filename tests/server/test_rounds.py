"""What a caller sees of rounds, where drafts are drawn from a distribution."""

from pathlib import Path

import pytest

from draftwood import LLM
from draftwood.core.sampling.params import SamplingParams
from draftwood.server.rounds import RoundRecorder, RoundView
from draftwood.testing.folder import write_folder

RECIPE = "draft_and_verify:skip=a1:size=paper:verifier=rejection"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_folder(Path(tmp_path_factory.mktemp("model")))), RECIPE, dtype="float64")


def test_drawn_nodes_have_their_probability_and_given_ones_none(llm: LLM) -> None:
    recorder, views = RoundRecorder(llm.tokenizer.token_text), list[RoundView]()
    llm.record(recorder)
    request = llm.request("abc abc", SamplingParams(temperature=1.0, seed=1, max_tokens=20, ignore_eos=True))
    other = llm.request("abc", SamplingParams(max_tokens=20, ignore_eos=True))
    recorder.watch(request, views)
    for each in (request, other):
        llm.engine.add(each)
    while llm.engine.has_work:
        llm.engine.step()
    assert [view.index for view in views] == list(range(request.stats.target_passes))
    assert sum(len(view.token_ids) for view in views) == request.stats.draft_tokens > 0
    assert all(p is not None and 0 < p <= 1 for view in views for p in view.probability)
    emitted = [text for view in views for text in view.emitted]
    assert emitted == [llm.tokenizer.token_text(token) for token in request.output]
    recorder.forget(request)
    assert not recorder._watched
