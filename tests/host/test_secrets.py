"""What people attach to public reports has no secrets: a list of names, and a list of values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xmp._plan import planner, runtimes
from xmp._plan.secrets import without_secrets
from xmp._words.types import HostFacts

SECRETS = {
    "TPU_API_TOKEN": "s3cr3t",
    "NCCL_SECRET": "s3cr3t with words",
    "XMP_PASSWORD": "s3cr3t",
    "JAX_ACCESSTOKEN": "s3cr3t",
    "CLOUD_TPU_SERVICE_ACCOUNT_KEY": "s3cr3t",
    "TORCH_PRIVATE_KEY": "s3cr3t",
    "PYTORCH_CREDENTIALS": "s3cr3t",
    "PADDLE_AUTH": "s3cr3t",
    "NEURON_PASSWD": "s3cr3t",
    "CUDA_API_KEY": "s3cr3t",
    "PET_TOKEN": "s3cr3t",
    "XLA_FLAGS": "--xla_a=1 --upload_api_key=s3cr3t --xla_b=2 --token s3cr3t",
    "LIBTPU_INIT_ARGS": "--auth-token='s3cr3t' --x=y",
    "MASTER_ADDR": "user:s3cr3t@node-a",
    "JAX_COORDINATOR_ADDRESS": "grpc://user:s3cr3t@node-a:8482",
    "MEGASCALE_COORDINATOR_ADDRESS": "https://s3cr3t@node-a/x",
    "TPU_LOG_DIR": "gs://bucket/x?sig=1&access_token=s3cr3t",
    "NCCL_NOTE": "a=1,token=s3cr3t,s3cr3t;b=2",
    "PJRT_NOTE": "--password 'a s3cr3t' --secret=\"a s3cr3t\"",
    "NEURON_NOTE": "https://user:p@s3cr3t@host/x",
    "XMP_NOTE": '{"password": "s3cr3t", "a": 1}',
    "TPU_NOTE": "Authorization: Bearer s3cr3t",
    "HIP_NOTE": "ghp_s3cr3ts3cr3ts3cr3ts3cr3t",
    "ROCR_NOTE": "hf_s3cr3ts3cr3ts3cr3ts3cr3t",
    "ZE_NOTE": "eyJhbGciOiJIUzI1NiJ9.s3cr3ts3cr3t.s3cr3t",
    "GLOO_NOTE": "-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\n-----END RSA PRIVATE KEY-----",
    "NO_PROXY": "localhost,user:s3cr3t@proxy",
    "https_proxy": "http://user:s3cr3t@proxy:3128",
    "HF_TOKEN": "s3cr3t",
}
KEPT = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_dump_to=/tmp/x",
    "LIBTPU_INIT_ARGS": "--xla_tpu_use_enhanced_launch_barrier=true",
    "TPU_WORKER_HOSTNAMES": "a:8471:10.0.0.1,b:8471:10.0.0.2,[fd00::1],key-server:1",
    "TPU_PROCESS_ADDRESSES": "token-host:8476,10.0.0.2:8477",
    "CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-GPU-8932f937/1/2",
    "XRT_WORKERS": "localservice:0;grpc://10.0.0.2:4000|localservice:1;grpc://10.0.0.3:4000",
    "SLURM_STEP_NODELIST": "n[08-10,12],x",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[::1]:4",
    "NCCL_IB_PKEY": "1",
    "TORCH_TPU_XPROF_SESSION_ID": "17",
    "LSB_MCPU_HOSTS": "a 4 b 4",
    "SM_HOSTS": '["algo-1","algo-2"]',
}


def test_no_secret_is_reported() -> None:
    described = "ACCELERATOR_TYPE: 'v5litepod-16'\nUPLOAD_TOKEN: 's3cr3t'\nWORKER_ID: '0'"
    facts = HostFacts(env=SECRETS, env_at_start=SECRETS, metadata={"tpu-env": described})
    report = planner.reported(facts)
    assert "s3cr3t" not in json.dumps(planner.facts_to_json(report))
    assert report.env["XLA_FLAGS"].startswith("--xla_a=1 --upload_api_key=(hidden) --xla_b=2")
    assert report.env["MASTER_ADDR"] == "(hidden)@node-a"
    assert report.metadata["tpu-env"].splitlines()[::2] == described.splitlines()[::2]
    assert "HF_TOKEN" not in report.env


def test_what_is_no_secret_stays() -> None:
    assert planner.reported(HostFacts(env=KEPT)).env == KEPT


def test_nothing_that_a_plan_reads_counts_as_a_secret() -> None:
    read = {name for each in runtimes.runtimes() for name in (*each.owned, *each.inputs)}
    env = dict.fromkeys(sorted(name for name in read if not name.endswith("*")), "1")
    assert "(hidden)" not in planner.reported(HostFacts(env=env)).env.values()


@pytest.mark.parametrize("piece", ["a", "a:", "--a ", "a=", "//a", "'a", "a.b@"])
def test_long_values_are_read_once(piece: str) -> None:
    """To look at the rest of one from each of its characters would outlast the time of a test."""
    without_secrets(piece * (131_072 // len(piece)))  # MAX_ARG_STRLEN: Linux allows no longer one


@pytest.mark.parametrize("words", [("facts",), ("facts", "--json"), ("doctor",), ("plan",)])
def test_the_commands(words: tuple[str, ...], tmp_path: Path) -> None:
    env = {name: value for name, value in SECRETS.items() if not name.startswith("MASTER")}
    done = subprocess.run(
        [sys.executable, "-m", "xmp", *words],
        env={**os.environ, **env, "LIBTPU_INIT_ARGS": SECRETS["LIBTPU_INIT_ARGS"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr
