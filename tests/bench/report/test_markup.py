"""Text stays text: escaping is what happens when nobody asks for it."""

from draftwood.bench.report.markup import Markup, element, escape, join, table


def test_text_is_escaped_in_elements_and_attributes_and_markup_is_not():
    inner = element("b", '1 < 2 & "3"')
    assert inner == "<b>1 &lt; 2 &amp; &quot;3&quot;</b>"
    made = element("p", inner, "<i>", class_='a"b', aria_label=None, stroke_width=0.5)
    assert made == f'<p class="a&quot;b" stroke-width="0.5">{inner}&lt;i&gt;</p>'
    assert isinstance(made, Markup) and escape(made) is made


def test_joined_text_is_escaped_and_a_sum_of_markup_is_text_again():
    assert join(("<", element("br")), ", ") == "&lt;, <br>"
    assert escape(element("b", "x") + "<") == "&lt;b&gt;x&lt;/b&gt;&lt;"  # a plain str: escaped rather than trusted


def test_characters_that_html_forbids_become_visible():
    assert escape("a\x00\x1b[31m\ud800\nb\t") == "a��[31m�\nb\t"


def test_shapes_of_svg_have_an_end_tag():
    assert element("line", x1=0, x2=1.25) == '<line x1="0" x2="1.25"></line>'


def test_the_first_column_of_a_table_names_its_lines():
    drawn = table(("a", "b"), [("<x>", "1")], caption="c")
    assert '<th scope="row">&lt;x&gt;</th><td>1</td>' in drawn and "<caption>c</caption>" in drawn
