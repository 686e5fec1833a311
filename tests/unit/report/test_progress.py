import io

from excise.meter.blocks import Progress
from excise.report.progress import describe, live

AT = Progress(block=2, blocks=11, warmup=False, position=1, cells=5, address="docker", elapsed_s=3.0, left_s=12.4)


def test_a_line_says_which_block_and_which_substrate():
    assert describe(AT) == "block 3 of 11, docker (2 of 5)"


def test_nothing_is_drawn_where_there_is_no_terminal():
    file = io.StringIO()
    with live(file) as tell:
        tell(AT)
    assert file.getvalue() == ""
