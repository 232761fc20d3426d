from base64 import b64encode
from html.parser import HTMLParser

from hypothesis import example, given
from hypothesis import strategies as st

from service.web.models import read_card, rendered, without_front_matter
from tests.words import words_of

TAGS = set(words_of("p a em strong code pre ul ol li blockquote hr br table thead tbody tr th td div h2 h3 h4 h5 h6"))
ATTRIBUTES = {"href", "rel", "title", "class", "start", "tabindex", "role", "aria-label"}


class Seen(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.links = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name == "href"]


def seen(text):
    parser = Seen()
    parser.feed(str(rendered(text)))
    return parser


@given(
    st.lists(
        st.sampled_from(
            [
                "<script>",
                "</script>",
                "<img src=x onerror=1>",
                "[a](",
                "javascript:alert(1)",
                "data:text/html,x",
                ")",
                "![",
                "](",
                "`",
                "\n",
                "# ",
                "| a | b |\n|--|--:|\n",
                "<a href='x'>",
                "&lt;",
                "\\",
                "*",
                "> ",
                "- ",
                "[x]: JaVaScRiPt:alert(1)\n",
                "[x]",
                "<javascript:alert(1)>",
                "\x00",
                "ä",
                "\u202e",
                "    ",
            ]
        )
        | st.text(max_size=5),
        max_size=30,
    ).map("".join)
)
@example("<svg/onload=alert(1)>")
@example("[a](vbscript:x) [b](//example.org) <http://example.org/onmouseover=alert(1)//>")
@example("[a]()")
@example("![a](a.png) [b](b.png)")
def test_a_card_can_only_be_text(text):
    found = seen(text)
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert all(link.lower().startswith(("http://", "https://", "mailto:", "#")) for link in found.links)


def test_a_picture_becomes_a_link_because_pages_load_nothing_from_elsewhere():
    found = seen("![the loss](https://example.org/loss.png)")
    assert "img" not in found.tags
    assert found.links == ["https://example.org/loss.png"]
    assert "picture: the loss" in rendered("![the loss](https://example.org/loss.png)")


def test_a_picture_beside_the_card_is_drawn_and_nothing_else_of_the_disk(tmp_path):
    png = b"\x89PNG\r\n\x1a\n and so on"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "curves.png").write_bytes(png)
    (tmp_path / "secret.png").write_bytes(png)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "text.png").write_bytes(b"no picture")
    (folder / "large.png").write_bytes(png + bytes(1_000_000))
    drawn = str(rendered('![loss "from" 3](curves.png)', folder))
    assert f'src="data:image/png;base64,{b64encode(png).decode()}" alt="loss &#34;from&#34; 3"' in drawn
    for other in ("link.png", "text.png", "large.png", "none.png", "../secret.png", "/etc/a.png"):
        assert "data:" not in str(rendered(f"![x]({other})", folder)), other
    assert seen("[x](curves.png)").links == ["#"]


def test_tags_are_shown_as_they_were_written():
    assert "&lt;b&gt;bold&lt;/b&gt;" in rendered("<b>bold</b>")


def test_headings_stand_below_the_heading_of_the_page():
    assert "<h2>Model</h2>" in rendered("# Model")


def test_front_matter_is_left_out_and_nothing_else():
    assert without_front_matter("---\nlicense: mit\n---\n# Model\n---\nend\n") == "# Model\n---\nend\n"
    assert without_front_matter("# Model\n---\n") == "# Model\n---\n"
    assert without_front_matter("---\nnever closed") == "---\nnever closed"


def test_a_card_that_is_not_there_is_none_and_one_that_is_not_text_is_read_as_far_as_it_goes(tmp_path):
    assert read_card(tmp_path) is None
    (tmp_path / "README.md").write_bytes(b"fine \xff\xfe too")
    assert read_card(tmp_path).startswith("fine ")
