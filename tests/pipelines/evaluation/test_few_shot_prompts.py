from pipelines.evaluation.few_shot.likelihood import Encoded
from pipelines.evaluation.few_shot.prompts import PromptTemplate
from pipelines.evaluation.few_shot.questions import FewShotQuestion, asked, counts

PROMPT = PromptTemplate(text="Q: {text}\nA:", answers=("no", "yes"), description="Answer.\n\n")


class Words:
    """A reader of so many words."""

    def __init__(self, limit):
        self.limit = limit

    def encode(self, each):
        return Encoded(self.context(each.context), self.context(each.answer))

    def context(self, text):
        return tuple(range(len(text.split())))

    def excess(self, encoded):
        return max(0, len(encoded.context) + len(encoded.answer) - self.limit)


def question(text, answer="yes"):
    return FewShotQuestion({"text": text}, ("no", "yes"), answer, 0)


SHOWN = [question("one", "no"), question("two"), question("three", "no")]


def test_a_prompt_is_description_examples_and_question_joined_by_separators():
    found = asked(Words(100), PROMPT, question("new"), SHOWN[:2])
    assert found.text() == ("Answer.\n\nQ: one\nA: no\n\nQ: two\nA: yes\n\nQ: new\nA: ", "")
    assert [each.answer for each in found.continuations()] == ["no", "yes"]
    assert found.continuations()[0].context == found.text()[0]


def test_a_question_without_content_stands_in_the_place_of_the_question():
    found = asked(Words(100), PROMPT, question("new"), SHOWN[:1])
    empty = found.question.without_content("N/A")
    assert found.text(empty)[0] == "Answer.\n\nQ: one\nA: no\n\nQ: N/A\nA: "


def test_the_first_examples_are_dropped_where_there_is_no_room():
    # the description has 1 word, an example 4, the question with its answer 4
    for limit, dropped, cut in ((17, 0, False), (16, 1, False), (12, 2, False), (5, 3, False), (4, 3, True)):
        found = asked(Words(limit), PROMPT, question("new"), SHOWN)
        assert (found.dropped, found.cut, list(found.examples)) == (dropped, cut, SHOWN[dropped:])


def test_room_is_kept_for_an_answer_that_is_written():
    assert asked(Words(17), PROMPT, question("new"), SHOWN, room=1).dropped == 0
    assert asked(Words(17), PROMPT, question("new"), SHOWN, room=2).dropped == 1


def test_what_found_no_room_is_counted():
    prompts = [asked(Words(limit), PROMPT, question("new"), SHOWN) for limit in (17, 12, 4)]
    assert counts(prompts) == {"examples_dropped": 5, "questions_with_fewer_examples": 2, "questions_cut": 1}
