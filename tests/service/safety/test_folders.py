"""What readers of a job are shown names no folder of the server, however the folder was written."""

import os
import sys
from pathlib import Path

from service.api.administration import server_folders
from service.safety.redaction import Redactor
from service.settings import read_settings


def test_a_home_behind_a_link_is_hidden_under_both_its_names(tmp_path):
    (tmp_path / "disk" / "home").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk" / "home")
    folders = server_folders(
        read_settings({}, home=tmp_path / "home"),
        {"FINERY_DATA": f"/srv/mirror{os.pathsep}/srv/other", "HF_HOME": "/srv/hub"},
    )
    redactor = Redactor((), folders)
    for place in (tmp_path / "home", tmp_path / "disk" / "home"):
        assert redactor.text(f"{place}/cache/stages/x") == "stages/x"
        assert redactor.text(f"no space left in {place}") == "no space left in ."
    assert (
        redactor.text("/srv/other/glue/mrpc, /srv/mirror/x, /srv/hub/hub/models--a--b")
        == "glue/mrpc, x, hub/models--a--b"
    )


def test_a_traceback_names_no_place_of_the_installation(tmp_path):
    redactor = Redactor((), server_folders(read_settings({}, home=tmp_path), {}))
    code = Path(__file__).parents[3] / "pipelines" / "run.py"
    shown = redactor.text(f'File "{code}", line 3\nFile "{sys.prefix}/lib/python3/site-packages/torch/x.py"')
    assert shown == 'File "pipelines/runs/run.py", line 3\nFile "lib/python3/site-packages/torch/x.py"'
    assert redactor.text(f"{Path.home()}/.cache/huggingface/hub/x") == "hub/x"
