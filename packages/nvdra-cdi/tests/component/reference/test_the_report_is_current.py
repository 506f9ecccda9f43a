"""REPORT.md of the corpus says what a run says."""

from cdi_corpus import report


def test_the_report_is_what_this_run_would_write(compared, injected, named):
    remedy = "run `python -m cdi_corpus` in packages/nvdra-cdi/tests"
    assert report.PLACE.read_text() == report.written(compared, (injected, named)), remedy
