"""Models, their files, and leaderboards."""

import io
import tarfile
import time

from service.disk import sweep_models
from tests.service.served import published


def done(served, **scores):
    attempt = served.started(served.job())
    served.written(attempt, [{"event": "started"}])
    served.store.record_stage(
        attempt.id,
        attempt.fencing,
        "evaluate",
        metrics=scores or {"glue/mrpc": {"f1": 0.5, "accuracy": 0.25}},
        with_scores=True,
    )
    return attempt


def test_a_model_is_found_by_name_and_by_id_and_its_card_is_read(served):
    published(served, done(served))
    model = served.viewer.get("/api/v1/models/demo-model").json()
    assert (model["name"], model["scores"], model["fingerprint"]) == (
        "demo-model",
        {"glue/mrpc": {"f1": 0.5}},
        "0123abcd",
    )
    assert served.viewer.get(f"/api/v1/models/{model['id']}").json() == model
    assert served.viewer.get("/api/v1/models").json()["data"] == [model]
    assert served.viewer.get("/api/v1/models/demo-model/card").text == "# A card\n"
    assert "path" not in model
    assert served.stranger.get("/api/v1/models/demo-model").status_code == 404
    assert served.stranger.get(f"/api/v1/models/{model['id']}").status_code == 404


def test_the_tar_holds_every_file_and_no_link(served, tmp_path):
    folder = published(served, done(served))
    (tmp_path / "outside").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside")
    answer = served.viewer.get("/api/v1/models/demo-model/download")
    assert answer.headers["content-disposition"] == 'attachment; filename="demo-model.tar"'
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        names = tar.getnames()
        weights = tar.extractfile("demo-model/base/model.safetensors").read()
    assert names == ["demo-model/README.md", "demo-model/base/model.safetensors"]
    assert weights == (folder / "base" / "model.safetensors").read_bytes()


def test_single_files_can_be_read_and_nothing_beside_them(served):
    folder = published(served, done(served))
    listed = served.viewer.get("/api/v1/models/demo-model/files").json()
    assert listed == [{"path": "README.md", "bytes": 9}, {"path": "base/model.safetensors", "bytes": 10_240}]
    assert (
        served.viewer.get("/api/v1/models/demo-model/files/base/model.safetensors").content
        == (folder / "base" / "model.safetensors").read_bytes()
    )
    for path in ("..%2f..%2f..%2f..%2ffinery.db", "../../../../admin.token", "/etc/passwd", "base", ""):
        assert served.viewer.get(f"/api/v1/models/demo-model/files/{path}").status_code == 404, path


def test_a_model_that_is_gone_for_good_takes_its_folder_with_it_but_never_one_outside(served, tmp_path):
    attempt = done(served)
    folder = published(served, attempt)
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    served.store.publish_model(attempt.id, attempt.fencing, name="odd", fingerprint="1", path=str(outside))
    assert served.submitter.delete("/api/v1/models/demo-model").status_code == 204
    assert served.submitter.delete("/api/v1/models/odd").status_code == 204
    assert served.viewer.get("/api/v1/models/demo-model").status_code == 404
    assert sweep_models(served.store, served.settings) == 0
    assert folder.exists(), "its grace period has only begun"
    assert sweep_models(served.store, served.settings, clock=lambda: time.time() + 8 * 86_400) == 2
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []
    assert outside.exists()


def test_leaderboards_put_the_best_first_whichever_way_round(served):
    one = done(served, **{"glue/mrpc": {"f1": 0.5}, "novels": {"perplexity": 30.0}})
    other = done(served, **{"glue/mrpc": {"f1": 0.75}, "novels": {"perplexity": 40.0}})
    known = served.viewer.get("/api/v1/leaderboard").json()
    assert [(each["benchmark"], each["metric"], each["scores"], each["lower_is_better"]) for each in known] == [
        ("glue/mrpc", "f1", 2, False),
        ("novels", "perplexity", 2, True),
    ]
    f1 = served.viewer.get("/api/v1/leaderboard/glue/mrpc").json()
    assert [(each["rank"], each["job"], each["value"]) for each in f1] == [(1, other.job, 0.75), (2, one.job, 0.5)]
    assert [
        each["job"] for each in served.viewer.get("/api/v1/leaderboard/novels", params={"metric": "perplexity"}).json()
    ] == [one.job, other.job]
    assert served.viewer.get("/api/v1/leaderboard/glue/cola").status_code == 404
    assert served.stranger.get("/api/v1/leaderboard").json() == []
    assert served.stranger.get("/api/v1/leaderboard/glue/mrpc").status_code == 404
