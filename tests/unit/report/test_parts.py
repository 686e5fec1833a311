import csv
import io

from excise.report.parts import Table

TABLE = Table(
    name="t", title="T", heads=("substrate", "total (ms)"), rows=(('a|b <i>, "c"', "1,000"), ("plain\nline", "2")), numbers=1
)


def test_markdown_keeps_its_columns_and_no_cell_becomes_markup():
    lines = TABLE.markdown().splitlines()
    assert lines[:2] == ["| substrate | total (ms) |", "| :-- | --: |"]
    assert lines[2] == '| a\\|b &lt;i>, "c" | 1,000 |'
    assert lines[3] == "| plain line | 2 |"


def test_csv_gives_back_what_went_in():
    assert [tuple(row) for row in csv.reader(io.StringIO(TABLE.csv()))] == [TABLE.heads, *TABLE.rows]
