"""Chat templates: messages to one prompt text, in a sandbox. A template that loses a message is refused.

The environment is that of transformers: blocks are trimmed, and `raise_exception`, `strftime_now`, `tojson`,
`{% break %}` and `{% generation %}` exist. Templates are not trusted: they cannot reach Python or change their arguments.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftwood.errors import OptionError, TokenizerError

Message = Mapping[str, Any]
REPAIR = "hint: repair chat_template in tokenizer_config.json, or chat_template.jinja, in the model's folder"


class Refused(TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """{% generation %} marks assistant text for training; here it renders as its body."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise Refused(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Not jinja's own, which escapes <, > and & for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = [_Generation, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """The chat template of one model. `special`: texts of its special tokens by name (bos_token, ...)."""

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special = dict(special or {})
        self._template: Template | None = None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt text. OptionError if a message is malformed or the template refuses the conversation."""
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
                raise OptionError(f"message {index} needs a 'role' and a 'content': {message!r}")
        if not messages:
            raise OptionError("a conversation needs at least one message, got none")
        try:
            return self._run(messages, add_generation_prompt, **variables)
        except Refused as error:
            raise OptionError(f"the model's chat template refuses this conversation: {error}") from error

    def check(self) -> None:
        """Compile and render test conversations; TokenizerError if the output lacks a message.

        A template may refuse a system message with raise_exception. It may not drop one silently.
        """
        user, assistant, system = (
            {"role": role, "content": f"sentinel{role}words"} for role in ("user", "assistant", "system")
        )
        for talk in ([user], [user, assistant, user | {"content": "sentinelseconduserwords"}], [system, user]):
            try:
                text = self._run(talk, True)
            except Refused as error:
                if talk[0] is system:
                    continue
                raise TokenizerError(f"the chat template refuses a plain conversation: {error}") from error
            for message in talk:
                if message["content"] not in text:
                    raise TokenizerError(
                        f"the chat template loses the {message['role']} message "
                        f"of {len(talk)}: {text[:200]!r}\n{REPAIR}"
                    )

    def _run(self, messages: Sequence[Message], add_generation_prompt: bool, **variables: Any) -> str:
        try:
            if self._template is None:
                self._template = _environment().from_string(self.source)
            known = {"tools": None, "documents": None, **self.special, **variables}
            return self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **known)
        except Refused:
            raise
        except SecurityError as error:
            raise TokenizerError(f"the chat template uses what the sandbox forbids: {error}") from error
        except Exception as error:  # a template is a program and can raise anything
            line = getattr(error, "lineno", None)
            where = f" (line {line})" if line else ""
            raise TokenizerError(
                f"the chat template fails{where}: {type(error).__name__}: {error}\n{REPAIR}"
            ) from error
