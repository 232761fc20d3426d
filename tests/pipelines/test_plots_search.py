from pipelines.reports.plots import Series, Tried, search


def test_values_stand_in_order_and_the_winner_is_filled():
    text = search(
        [Series("lora <r>", [Tried(1e-2, 0.5, False), Tried(1e-4, 0.6, True), Tried(1e-3, 0.7, False)])],
        "learning_rate",
        "f1",
    )
    places = [float(part.split('"')[0]) for part in text.split('cx="')[1:]]
    assert places == sorted(places)
    assert abs((places[1] - places[0]) - (places[2] - places[1])) < 0.2  # equal factors, equal distances
    assert text.index('class="won"') < text.index('class="lost"')
    assert "lora &lt;r&gt;: learning_rate 0.0001, f1 0.6" in text


def test_one_value_alone_can_be_drawn():
    assert "<circle" in search([Series("full", [Tried(0.1, 0.5, True)])], "rate", "loss")
