"""Networks that draft: `modules` compute, `runners` run them over a cache on each backend, `files` hold their weights."""
