"""bench gpu: what a GPU gives. passes.py times target passes, texts.py whole answers, page.py writes the page."""
