"""The files that come with Finery are found in a checkout and in a wheel."""

import pytest

from pipelines.core import architecture_fields, files


def test_the_repositorys_folder_is_found(repository):
    assert files.configs_folder() == repository / "configs"
    assert "bert-mini" in architecture_fields.presets()


def test_a_wheel_carries_its_own(tmp_path, monkeypatch):
    inside = tmp_path / "site-packages" / "pipelines" / "configs" / "architectures"
    inside.mkdir(parents=True)
    (inside / "mine.yaml").write_text("hidden_size: 8\n")
    (tmp_path / "site-packages" / "configs").mkdir()  # somebody else's
    monkeypatch.setattr(files, "__file__", str(tmp_path / "site-packages" / "pipelines" / "fields" / "places.py"))
    assert files.configs_folder() == inside.parent
    assert list(architecture_fields.presets()) == ["mine"]


def test_an_installation_without_them_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "a" / "pipelines" / "fields" / "places.py"))
    with pytest.raises(FileNotFoundError, match="install Finery again"):
        files.configs_folder()
