import subprocess
import sys

import pytest

from pipelines.core.errors import CommandError
from service.executors.protocol import Executor
from service.executors.registry import EXECUTORS, executor_of
from service.settings import Settings


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_name_makes_an_executor_of_that_name_without_reaching_for_anything(name, tmp_path):
    made = executor_of(Settings(home=tmp_path, executor=name))
    assert isinstance(made, Executor)
    assert made.name == name


def test_only_a_registered_name_is_a_setting():
    with pytest.raises(ValueError, match="should be 'local', 'docker', 'ray' or 'slurm'"):
        Settings(executor="kubernetes")


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    settings = Settings(home=tmp_path).model_copy(update={"executor": "kubernetes"})
    with pytest.raises(CommandError, match="there is no executor 'kubernetes'; there are: local, docker, ray, slurm"):
        executor_of(settings)


def test_no_executor_loads_ray_or_torch_into_the_server():
    code = "import sys; import service.executors.local, service.executors.docker, service.executors.ray, service.executors.slurm, service.supervisor; print(sorted({'ray', 'torch', 'transformers'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
