"""The plot of the cascades is a file with colours of its own."""

from pipework.benchmarks.studies.documents.cascade_plot import cascade_plot


def test_the_plot_has_a_line_for_each_cascade_and_no_colour_without_a_value(cascades, trained):
    other = cascades.model_copy(update={"first": "a student"})
    drawn = cascade_plot([trained, cascades, other])
    assert drawn.startswith("<svg ")
    for text in ("THUCNews: the linear model<", "THUCNews: a student<", ">0.5<", ">1<"):
        assert text in drawn
    assert "var(--series-2)" in drawn
    assert "--series-2: #" in drawn
    assert cascade_plot([cascades]) == cascade_plot([cascades, trained])


def test_a_plot_without_results_has_axes():
    assert "cost of a text" in cascade_plot([])
