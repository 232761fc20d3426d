from pipelines.publishing.card import evidence
from pipelines.publishing.requirements import Scored

CLEAN = {"run": 13, "examples": 100, "exact": 0, "partly": 0, "seen": 0, "clean": {"examples": 100, "scores": {}}}


def told(about):
    return list(evidence(Scored({"glue/mrpc": {"accuracy": 0.8}}, {"glue/mrpc": about})))


def test_overlap_is_told_with_the_score_of_the_others():
    found = CLEAN | {
        "exact": 2,
        "partly": 9,
        "seen": 10,
        "clean": {"examples": 90, "scores": {"accuracy": 0.75}},
        "unknown": "bert-base",
    }
    assert told({"overlap": {"validation": found}}) == [
        "glue/mrpc, validation: 10 of 100 examples overlap with the training data (2 as a whole, 9 in a run of 13 words); the 90 others score accuracy 0.75. "
        "What bert-base was trained on before is not known."
    ]
    assert told({"overlap": {"validation": CLEAN}}) == [
        "glue/mrpc, validation: no example overlaps with the training data, as a whole or in a run of 13 words."
    ]
    assert told({"overlap": {"validation": {"unchecked": "gone"}}}) == [
        "glue/mrpc, validation: overlap with the training data could not be checked."
    ]


def test_calibration_is_told_with_its_temperature():
    assert told({"calibration": {"validation": {"ece": 0.0534, "temperature": 1.0}}}) == [
        "glue/mrpc, validation: expected calibration error 0.053 in 15 bins, at temperature 1."
    ]


def test_scores_without_evidence_have_no_sentence():
    assert told({"model": "mrpc"}) == []
