from draftwood.bench.report.acceptance_plot import acceptance_plot, drafting


def test_each_depth_that_was_drafted_has_a_cell_with_its_share():
    found = {"a": {"acceptance_by_position": [0.9, None, 0.25]}, "plain": {"acceptance_by_position": []}}
    assert drafting(found, ["plain", "a"]) == ["a"]
    drawn = acceptance_plot(found, ["a"])
    assert drawn.count('class="cell"') == 2
    assert "a: 25.0 % of the rounds that drafted 3 deep accepted so deep" in drawn
    assert '<text x="20" ' not in drawn and ">90</text>" in drawn
