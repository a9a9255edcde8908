"""An HTTP server with OpenAI's interface, and AsyncLLM: both hand requests to one engine thread (bridge.py).

app -> asked (fields, checks) -> bridge -> engine thread -> mailbox -> stream or json
"""
