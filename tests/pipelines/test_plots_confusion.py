from pipelines.reports.run_plots import matrix


def test_every_count_stands_in_its_cell_and_the_shade_is_the_share_of_the_row():
    text = matrix(["cat", "dog <x>"], [[3, 1], [0, 0]])
    assert text.count("<rect") == 8
    assert "cat taken for dog &lt;x&gt;: 1 of 4 (25.0%)" in text
    assert 'fill-opacity="0.675"' in text  # 0.9 times three quarters
    assert text.count(">0</text>") == 2
    assert text.index(">3</text>") < text.index(">1</text>")


def test_more_classes_than_can_be_read_have_no_picture():
    names = [f"class {at}" for at in range(15)]
    assert matrix(names, [[1] * 15] * 15) == ""
    assert matrix([], []) == ""
    assert matrix(names[:14], [[1] * 14] * 14).count("<rect") == 2 * 14 * 14
