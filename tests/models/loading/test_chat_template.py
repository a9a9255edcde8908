import re
from datetime import datetime
from typing import Any

import pytest

from draftwood.errors import OptionError, TokenizerError
from draftwood.models.loading.chat_template import ChatTemplate

PLAIN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
USER = {"role": "user", "content": "hello"}
TALK = [{"role": "system", "content": "be <b>rief & ü"}, USER, {"role": "assistant", "content": "hi"}, USER]

# The layouts in use, shortened: ChatML, Llama 2 (no system role), Llama 3 (trims), alternating roles enforced.
TEMPLATES = {
    "chatml": (
        "{%- for message in messages %}\n"
        "  {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
    ),
    "alternating": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
        "{% else %}{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    ),
    "loops": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if loop.index0 > 99 %}{% break %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{{ ns.n }}:{{ m | tojson }} {% endfor %}"
        "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    ),
    "plain": PLAIN,
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("talk", [[USER], [USER, {"role": "assistant", "content": " x "}, USER], TALK])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(name: str, talk, prompt: bool):
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    special: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(TEMPLATES[name], special)
    template.check()
    try:
        theirs = render_jinja_template([talk], chat_template=TEMPLATES[name], add_generation_prompt=prompt, **special)
    except TemplateError as refusal:
        with pytest.raises(OptionError, match=re.escape(str(refusal))):
            template.render(talk, prompt)
    else:
        assert template.render(talk, prompt) == theirs[0][0]


def test_other_variables_reach_the_template():
    source = "{{ messages[0].content }}{% if thinking %} think{% endif %}{{ tools }}"
    assert ChatTemplate(source).render([USER], thinking=True) == "hello thinkNone"


def test_today_can_be_written():
    text = ChatTemplate("{{ strftime_now('%Y') }}").render([USER])
    assert text == str(datetime.now().year)


@pytest.mark.parametrize(
    ("source", "lost"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "user"),
        ("{{ messages[-1].content }}", "user"),
        ("{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}", "assistant"),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", "system"),
        ("{% for m in messages %}{{ m.text }}{% endfor %}", "user"),
        ("{% for m in messages %}{{ m.content[:8] }}{% endfor %}", "user"),
    ],
)
def test_a_template_that_loses_words_is_refused(source: str, lost: str):
    with pytest.raises(TokenizerError, match=rf"(?s)loses the {lost} message.*hint: repair"):
        ChatTemplate(source).check()


def test_a_system_message_may_be_refused_aloud():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + PLAIN
    template = ChatTemplate(source)
    template.check()
    with pytest.raises(OptionError, match="refuses this conversation: no system role"):
        template.render(TALK)


def test_a_template_that_refuses_everything_is_refused():
    with pytest.raises(TokenizerError, match="refuses a plain conversation: never"):
        ChatTemplate("{{ raise_exception('never') }}").check()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}", r"fails \(line 1\): TemplateSyntaxError"),
        ("{{ messages[0].content | no_such_filter }}", "fails"),
        ("{{ messages[0].content + 3 }}", "fails: TypeError"),
        ("{{ nobody.nothing }}", "fails: UndefinedError"),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError"),
    ],
)
def test_a_template_that_cannot_run_is_refused(source: str, message: str):
    with pytest.raises(TokenizerError, match=message):
        ChatTemplate(source).check()


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_a_template_cannot_reach_python(source: str):
    with pytest.raises(TokenizerError, match=r"the sandbox forbids|message of 1: ''"):  # forbidden, or simply not there
        ChatTemplate(source).check()


@pytest.mark.parametrize("talk", [[], ["hello"], [{"content": "x"}], [{"role": "user"}], [{"role": 3, "content": ""}]])
def test_a_malformed_conversation_is_refused_at_the_door(talk):
    with pytest.raises(OptionError):
        ChatTemplate(PLAIN).render(talk)


def test_angle_brackets_and_umlauts_are_not_escaped():
    text = ChatTemplate("{{ messages | tojson }}").render(TALK[:1])
    assert "<b>rief & ü" in text
