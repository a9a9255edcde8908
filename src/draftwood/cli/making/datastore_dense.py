"""draftwood datastore build --dense: the model reads the texts, and its hidden states become a store for `dresd`."""

import sys
from pathlib import Path
from time import monotonic

from draftwood.cli.screen import Screen


def build_dense_store(files: list[Path], out: Path, model: str, dtype: str, device: str) -> None:
    from draftwood.cli.making.datastore_build import Bar, left_out, texts_of
    from draftwood.drafters.retrieval.stores.dense.build import build_dense
    from draftwood.models.loading.load import load
    from draftwood.runners.open import runner_of
    from draftwood.train.data.documents import Documents, files_of, size_of
    from draftwood.train.data.hidden_states import final_states

    found = files_of(files)
    loaded, start = load(model, dtype=dtype, device=device), monotonic()
    with Bar(sum(map(size_of, found))) as bar:
        documents = Documents(found, loaded.tokenizer, bar.read)
        pieces = list(texts_of(documents))  # all of them, so that it is known how much the model has to read
        read = final_states(runner_of(loaded))
        info = build_dense(out, pieces, read, loaded.info, progress=bar.stage)
    seconds, screen = monotonic() - start, Screen()
    for line in left_out(documents):
        print(line, file=sys.stderr)
    kept = len(found) - len(documents.skipped)
    screen.line(f"{info.num_keys} keys over {info.num_tokens} tokens in {info.num_documents} texts of {kept} files")
    speed, size = info.num_tokens / max(seconds, 1e-9), size_of(out) / 1e6
    screen.line(f"{seconds:.1f} s, {speed:.0f} tokens/s; {out}: {size:.1f} MB")
